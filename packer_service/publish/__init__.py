"""Parts of a finished dataset for others' software, beside the files of the format."""
