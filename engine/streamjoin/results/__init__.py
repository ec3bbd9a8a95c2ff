"""Snapshots of results: parts that tasks stage, sorted files in the checkpoint, other stores, and their readers."""
