"""The HTTP interface of a running join: metrics, health, the plan API, queries; and the loop that scales the join from within.

``catalogue`` names every metric; ``metrics`` gives them their values; ``watch`` feeds it with the driver's events. ``messages`` has the
bodies of the plan API, ``api`` answers; ``server`` is the port. ``wishes`` makes plans for a running
join, ``samples`` and ``scaler`` are the ports of its autoscaler, and ``decisions`` keeps its decisions.
"""
