"""A query's text, read before DuckDB gets it: which relations and columns it asks for, of which epoch, and what it says of their rows.

DuckDB answers the text as it stands, and filters by itself. What is found here only leaves out rows that cannot matter, and so errs on the
side of more: a predicate counts where it is a conjunct of the WHERE of the very SELECT that names the relation, compares a column of it
with a constant, and no join, sample or alias there could give it another meaning. A relation that is named several times is read once,
with what any of these may need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokens import Token, TokenType  # type: ignore[attr-defined]

from streamjoin.language.errors import unparsed
from streamjoin.query.bounds import ordinal
from streamjoin.query.errors import QueryError, Why
from streamjoin.query.relation import Bounds, Constraint, Wanted

DIALECT = "duckdb"
MOST_CHARACTERS = 64 << 10
_FUNCTIONS = (exp.GenerateSeries, exp.Unnest, exp.Values)
"""Functions in FROM that read nothing."""
_COMPARISONS: dict[type[exp.Expr], type[exp.Expr]] = {exp.EQ: exp.EQ, exp.LT: exp.GT, exp.LTE: exp.GTE, exp.GT: exp.LT, exp.GTE: exp.LTE}
"""And what each is with its sides exchanged."""

Evaluate = Callable[[str, pa.DataType], pa.Scalar | None]
"""A constant's SQL and a column's type -> its value in that type; None where there is none that compares as the constant does."""


@dataclass(frozen=True)
class Statement:
    """One SELECT."""

    sql: str
    """For DuckDB."""
    as_of: int | None
    """The epoch that it asks for; None: the last one."""
    tree: exp.Expr

    @classmethod
    def parse(cls, text: str) -> Statement:
        """Raises QueryError for what is not one SELECT, perhaps with ``AS OF epoch`` at its end."""
        if len(text) > MOST_CHARACTERS:
            raise QueryError(Why.WRONG, f"the query has {len(text):,} characters and may have {MOST_CHARACTERS:,}; shorten it")
        try:
            tokens = sqlglot.tokenize(text, read=DIALECT)
            sql, as_of = _split(text, tokens)
            sql = _with_quotes(sql, tokens)
            trees = [tree for tree in sqlglot.parse(sql, read=DIALECT) if tree is not None]
        except RecursionError:
            raise QueryError(Why.WRONG, "the query is nested too deeply; simplify it") from None
        except SqlglotError as error:
            raise QueryError(Why.WRONG, f"the query cannot be parsed{unparsed(error)}; write one SELECT in DuckDB's SQL") from None
        if len(trees) != 1:
            raise QueryError(Why.WRONG, f"the query has {len(trees)} statements; write one SELECT")
        (tree,) = trees
        if not isinstance(tree, exp.Query):
            raise QueryError(Why.WRONG, f"the query is {_kind(tree)}; only a single SELECT is answered, and nothing can be changed")
        if tree.find(exp.Describe, exp.Summarize):
            raise QueryError(Why.WRONG, "DESCRIBE and SUMMARIZE are not answered; SELECT * ... LIMIT 0 has the columns")
        if tree.find(exp.Pivot):
            raise QueryError(Why.WRONG, "PIVOT and UNPIVOT are several statements to DuckDB; use GROUP BY with sum(...) FILTER (WHERE ...)")
        if next(tree.find_all(exp.Placeholder, exp.Parameter), None) is not None:
            raise QueryError(Why.WRONG, "the query has a parameter; write the value in its place")
        return cls(sql, as_of, tree)

    @property
    def names(self) -> frozenset[str]:
        """The names of all that it reads from, case-folded; names of its own WITH are among them."""
        return frozenset(table.name.casefold() for table in self.tree.find_all(exp.Table))

    def wanted(self, schemas: Mapping[str, pa.Schema], evaluate: Evaluate) -> dict[str, Wanted]:
        """What the query asks of each relation of ``schemas``. Raises QueryError for a relation that is not among these."""
        for source in (lateral.this for lateral in self.tree.find_all(exp.Lateral)):
            if not isinstance(source, exp.Subquery | exp.Unnest):
                raise _not_a_relation(source, schemas)
        folded = {name.casefold(): name for name in schemas}
        local = {cte.alias_or_name.casefold() for cte in self.tree.find_all(exp.CTE)}
        occurrences: dict[str, list[Bounds | None]] = {}
        for table in self.tree.find_all(exp.Table):
            if isinstance(table.this, _FUNCTIONS):
                continue
            if not isinstance(table.this, exp.Identifier):
                raise _not_a_relation(table, schemas)
            name = folded.get(table.name.casefold())
            if name is None or table.db:
                if table.name.casefold() in local and not table.db:
                    continue
                raise QueryError(Why.WRONG, f"{_excerpt(table)}: there is no such relation; there are {_listed(schemas)}")
            bounds = None if name.casefold() in local else _bounds_of(table, schemas[name], schemas, evaluate)
            occurrences.setdefault(name, []).append(bounds)
        return {
            name: Wanted(self._columns(name, schemas[name]), None if None in found else [each for each in found if each is not None])
            for name, found in occurrences.items()
        }

    def _columns(self, name: str, schema: pa.Schema) -> list[str]:
        """The relation's columns that the query may read: those with a name that is anywhere in it."""
        names = {identifier.name.casefold() for identifier in self.tree.find_all(exp.Identifier)}
        aliases = {t.alias_or_name.casefold() for t in self.tree.find_all(exp.Table) if t.name.casefold() == name.casefold()}
        stars = any(not isinstance(star.parent, exp.Count) for star in self.tree.find_all(exp.Star))
        natural = any(join.method == "NATURAL" for join in self.tree.find_all(exp.Join))
        whole = any(column.name.casefold() in aliases for column in self.tree.find_all(exp.Column))
        if stars or natural or whole or self.tree.find(exp.Columns) is not None:
            return list(schema.names)
        return [column for column in schema.names if column.casefold() in names]


def _not_a_relation(source: exp.Expr, schemas: Mapping[str, pa.Schema]) -> QueryError:
    # NB: some of DuckDB's, as query(), would read relations by names that are in their texts.
    return QueryError(Why.WRONG, f"{_excerpt(source)}: is a table function; FROM takes {_listed(schemas)}, and range and unnest")


def _split(text: str, tokens: Sequence[Token]) -> tuple[str, int | None]:
    """The text without ``AS OF epoch`` at its end, and that epoch."""
    rest = list(tokens)
    while rest and rest[-1].token_type is TokenType.SEMICOLON:
        rest.pop()
    if len(rest) < 3 or rest[-2].text.upper() != "OF" or rest[-3].token_type is not TokenType.ALIAS:
        return text, None
    if not (rest[-1].token_type is TokenType.NUMBER and rest[-1].text.isdigit()):
        raise QueryError(Why.WRONG, f"AS OF {rest[-1].text}: must be the number of an epoch, as answers name it")
    return text[: rest[-3].start], int(rest[-1].text[:18])


def _with_quotes(sql: str, tokens: Sequence[Token]) -> str:
    """The same with each column ``at`` in quotes: to DuckDB it is a keyword, and many streams have their event time in it."""
    for token, following in zip(reversed(tokens), [None, *reversed(tokens)], strict=False):
        is_keyword = following is not None and (following.token_type is TokenType.L_PAREN or following.text.upper() == "TIME")
        if token.text.casefold() == "at" and token.end - token.start == 1 and not is_keyword and token.end < len(sql):
            sql = f'{sql[: token.start]}"{token.text}"{sql[token.end + 1 :]}'
    return sql


def _bounds_of(table: exp.Table, schema: pa.Schema, schemas: Mapping[str, pa.Schema], evaluate: Evaluate) -> Bounds | None:
    """What must be true of the rows of this occurrence of a relation; None: nothing that could be used."""
    select = table.parent_select
    if not isinstance(select, exp.Select) or (where := select.args.get("where")) is None:
        return None
    sources = _sources(select)
    if sources is None or not any(source is table for source in sources):
        return None
    alias = table.args.get("alias")
    if alias is not None and alias.args.get("columns"):
        return None
    others = [source for source in sources if source is not table]
    taken = {projection.alias.casefold() for projection in select.expressions if isinstance(projection, exp.Alias)}

    def column_of(node: exp.Expr) -> str | None:
        """The relation's column that it is."""
        if not isinstance(node, exp.Column) or node.args.get("db") is not None:
            return None
        if node.table:
            if node.table.casefold() != table.alias_or_name.casefold():
                return None
        elif node.name.casefold() in taken or not all(_lacks(other, node.name, schemas) for other in others):
            return None
        return next((name for name in schema.names if name.casefold() == node.name.casefold()), None)

    found: dict[str, Constraint] = {}
    for conjunct in _conjuncts(where.this):
        for column, constraint in _constraints(conjunct, column_of, schema, evaluate):
            found[column] = _both(found.get(column, Constraint()), constraint)
    return found or None


def _sources(select: exp.Select) -> list[exp.Expr] | None:
    """What a SELECT joins; None where its WHERE may not be taken to be one of each of them."""
    begin = select.args.get("from_")
    joins: list[exp.Join] = select.args.get("joins") or []
    plain = all(join.kind in ("", "INNER", "OUTER", "CROSS") and join.method == "" for join in joins)
    if begin is None or not plain or select.args.get("laterals"):
        return None
    sources = [begin.this, *(join.this for join in joins)]
    if any(isinstance(source, exp.Table) and (source.args.get("sample") or source.args.get("joins")) for source in sources):
        return None
    return None if select.args.get("sample") else sources


def _lacks(source: exp.Expr, column: str, schemas: Mapping[str, pa.Schema]) -> bool:
    """Whether a source surely has no such column."""
    if not isinstance(source, exp.Table) or not isinstance(source.this, exp.Identifier):
        return False
    schema = next((schema for name, schema in schemas.items() if name.casefold() == source.name.casefold()), None)
    alias = source.args.get("alias")
    renamed = alias is not None and alias.args.get("columns")
    return schema is not None and not renamed and all(name.casefold() != column.casefold() for name in schema.names)


def _conjuncts(node: exp.Expr) -> Iterator[exp.Expr]:
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.And):
        yield from _conjuncts(node.this)
        yield from _conjuncts(node.expression)
    else:
        yield node


def _constraints(
    node: exp.Expr, column_of: Callable[[exp.Expr], str | None], schema: pa.Schema, evaluate: Evaluate
) -> Iterator[tuple[str, Constraint]]:
    def value(of: exp.Expr, column: str) -> pa.Scalar | None:
        type_ = schema.field(column).type
        if isinstance(of, exp.Literal) and not of.is_string and of.this.isdigit() and pa.types.is_signed_integer(type_):
            return pa.scalar(int(of.this), type_) if int(of.this[:30]) < 1 << (type_.bit_width - 1) else None
        return evaluate(of.sql(dialect=DIALECT), type_) if _is_constant(of) else None

    if type(node) in _COMPARISONS:
        for one, other, kind in ((node.this, node.expression, type(node)), (node.expression, node.this, _COMPARISONS[type(node)])):
            column = column_of(one)
            found = None if column is None else value(other, column)
            if column is not None and found is not None:
                if kind is exp.EQ:
                    yield column, Constraint(values=(found,))
                elif kind in (exp.LT, exp.LTE):
                    yield column, Constraint(high=found)
                else:
                    yield column, Constraint(low=found)
    elif isinstance(node, exp.Between) and not node.args.get("symmetric"):
        column = column_of(node.this)
        ends = [] if column is None else [value(node.args[end], column) for end in ("low", "high")]
        if column is not None and None not in ends:  # all three are compared in one type
            yield column, Constraint(low=ends[0], high=ends[1])
    elif isinstance(node, exp.In) and node.expressions:
        column = column_of(node.this)
        values = [] if column is None else [value(each, column) for each in node.expressions]
        if column is not None and None not in values:
            yield column, Constraint(values=tuple(each for each in values if each is not None))


def _is_constant(node: exp.Expr) -> bool:
    if isinstance(node, exp.Add | exp.Sub | exp.Mul):
        return _is_constant(node.this) and _is_constant(node.expression)
    if isinstance(node, exp.Paren | exp.Neg | exp.Cast) and not isinstance(node, exp.TryCast):
        return _is_constant(node.this)
    return isinstance(node, exp.Literal)


def _both(one: Constraint, other: Constraint) -> Constraint:
    sets = [each.values for each in (one, other) if each.values is not None]
    lows = [each.low for each in (one, other) if each.low is not None]
    highs = [each.high for each in (one, other) if each.high is not None]
    return Constraint(min(sets, key=len, default=None), max(lows, key=ordinal, default=None), min(highs, key=ordinal, default=None))


def _kind(tree: exp.Expr) -> str:
    return f"{tree.this} ..." if isinstance(tree, exp.Command) else f"{tree.key.upper()} ..."


def _excerpt(node: exp.Expr) -> str:
    text = node.sql(dialect=DIALECT)
    return text if len(text) <= 60 else text[:59] + "…"


def _listed(schemas: Mapping[str, pa.Schema]) -> str:
    return ", ".join(schemas)
