"""A queue of tasks by itself, across processes and machines; nothing here knows of crawling. Start at task_queue.py."""
