"""What a finished dataset carries for others' software, beside the files of the format."""
