"""What a manifest's SQL says: columns, expressions, the condition of a join, its window. Free of any runtime's types.

=================  =====================================================================================================
``schema``         the types of columns, and the schema of a stream
``sql``            SQL text parsed, resolved against the streams and typed
``predicate``      theta: the main predicate that an index serves, and the residual
``condition``      a join's ``on`` turned into the predicates that could serve it, and the choice among them
``window``         which pairs of tuples are close enough, and when a held tuple can match nothing any more
=================  =====================================================================================================
"""
