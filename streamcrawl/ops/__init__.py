"""What operators see: status, audit, progress."""
