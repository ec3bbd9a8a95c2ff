"""What a running join shows to machines that watch it, and what they may tell it, over HTTP; and the loop that scales it from within.

``catalogue`` names every metric; ``metrics`` gives them their values; ``watch`` tells it what the driver does. ``messages`` are what goes
over the wire of the plan API, ``token`` lets in who may ask, ``api`` answers; ``server`` is the port. ``wishes`` makes plans for a running
join, ``autoscaler`` decides when, and ``decisions`` keeps what it decided.
"""
