"""Types of the service's answers: the source of its OpenAPI document."""
