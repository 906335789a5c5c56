"""The loops of a worker and of its supervisor, one class and one file each. Start at supervisor.py and child.py."""
