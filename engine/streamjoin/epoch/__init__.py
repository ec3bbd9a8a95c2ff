"""What the driver and the workers of an epoch say to each other: ``spec`` is the work, ``reports`` what came of it.

``ports`` has the protocols by which a driver has tasks run (``streamjoin.runner``), and what an epoch comes to for who runs a driver;
``progress`` notices an epoch that does not move, ``delays`` measures how long records wait for their results.
"""
