"""The Kubernetes operator: it watches StreamJoin resources and keeps an engine running for each.

``main`` starts kopf and the queue; ``reconcile`` is the one level-triggered function that every handler and timer calls; its steps are in
``driver_steps``, ``child_steps``, ``deletion_steps``, ``scaling_step`` and ``trial_step``. What is pure stands apart and is tested apart:
``names``, ``children`` (what should exist), ``drift`` (whether it does), ``memory``, ``changes`` (what a change of the manifest takes),
``status`` (of ``facts``, with ``conditions``). Ports: ``api`` (Kubernetes), ``driver`` (the engine's plan API). ``crd`` makes the
CustomResourceDefinition, from the manifest's models and rules, ``crd_rules`` and ``status_model``; the operator does not run it.
"""
