"""Two workers of one cluster on this machine."""

import json
import os
import socket
import subprocess


def started(words, **options):
    """Starts the same command as each of two workers of one cluster; returns the processes."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    environments = [
        {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        for index in range(2)
    ]
    return [
        subprocess.Popen(
            words,
            env={**os.environ, "TF_CONFIG": json.dumps(cluster), "PYTHONWARNINGS": "ignore"},
            text=True,
            **options,
        )
        for cluster in environments
    ]


def free_ports(count):
    """Free ports of this machine."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports
