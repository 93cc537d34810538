"""Pure: a mask goes in; token layouts, image boundaries and their measures come out."""
