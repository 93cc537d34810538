"""What pytest-xdist starts as a worker's Python: asks tests/support/workers.py for a fork, and lives as long as it.

The fork gets this process's standard streams, over which xdist speaks with it.
"""

import os
import signal
import socket
import sys

signal.signal(signal.SIGINT, signal.SIG_IGN)  # the fork has it as well, and ends as a worker does
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(os.environ["PRESHARD_TEST_WORKERS"])
    socket.send_fds(connection, [b"."], [0, 1, 2])
    status = connection.recv(1)
sys.exit(status[0] if status else 1)
