"""What a manifest's SQL says: columns, expressions, the condition of a join, its window. Free of any runtime's types.

=================  =====================================================================================================
``types``          SQL's types, and what they widen to
``schema``, ``ddl``  the schema of a stream, and the Spark DDL that declares it
``sql``            SQL text parsed, resolved against the streams and typed
``tree``           the syntax tree that comes of it; ``analyzer`` makes it, ``render`` writes it as SQL again
``literals``, ``temporal``, ``coercion``  constants, times and intervals, and operands brought to the type that is needed
``predicate``      theta: the main predicate that an index serves, and the residual
``condition``      a join's ``on`` turned into the predicates that could serve it, and the choice among them
``window``         which pairs of tuples are close enough, and when a held tuple can match nothing any more
=================  =====================================================================================================
"""
