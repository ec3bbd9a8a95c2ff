"""What a running join shows to machines that watch it: metrics for Prometheus and a health check, over HTTP.

``catalogue`` names every metric; ``metrics`` gives them their values; ``watch`` tells it what the driver does; ``server`` is the port.
"""
