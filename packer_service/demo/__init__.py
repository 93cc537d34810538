"""The demonstration source: real video, photographs and text that installed packages carry."""
