"""Calls in a process of their own: a crash, a hang or eaten memory there becomes a reason, not the end of the job.

Knows nothing of media. :mod:`preshard.packer_service.ingest.media.isolated` says what is called, and what a failure
means there.
"""
