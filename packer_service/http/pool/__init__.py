"""The processes that read datasets, as the process that listens sees them: started, asked, bounded and ended."""
