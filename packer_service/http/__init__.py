"""The inspection service: a read-only REST interface over every dataset below a folder, and its page."""
