"""What a manifest's SQL says: columns, expressions, the condition of a join, its window. Free of any runtime's types.

======================================  ================================================================================
``types``                               SQL's types, and what they widen to
``schema``, ``ddl``                     the schema of a stream, and the Spark DDL that declares it
``sql``                                 SQL text parsed, resolved against the streams and typed
``tree``, ``analyzer``, ``render``      the syntax tree that comes of it, what makes the tree, and the tree as SQL again
``literals``, ``temporal``              constants; dates, times and intervals
``coercion``                            operands brought to the types that their place asks for
``predicate``                           theta: the main predicate that an index serves, and the residual
``condition``, ``choice``               a join's condition turned into predicates that could serve it; the choice among them
``conjunct``, ``statements``            one conjunct turned into statements about one key a side
``linear``, ``exact_keys``              exact numbers in linear form, and the narrowest keys that hold them
``window``                              which pairs of tuples are close enough, and when a held one can match no more
======================================  ================================================================================
"""
