"""Sources and sinks: where a stream's records come from and where a join's results go.

``base`` holds the protocols. A source plans splits in the driver, and its reader reads them in the tasks; a sink's
writers stage files in the tasks, and the driver publishes them once the epoch is committed. ``factory`` builds both
from a manifest's models.
"""
