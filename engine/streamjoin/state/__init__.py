"""Durable and held state: storage at a URL, tuple blocks, the commit log, and the workers' run store."""
