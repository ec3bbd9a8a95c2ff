"""The sources and sinks: one module for each system, with the models of its fields (``manifest.connector``)."""
