"""What the service answers, as types: the source of its OpenAPI document."""
