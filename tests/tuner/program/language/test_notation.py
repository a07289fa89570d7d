"""The notation: what it says, what it refuses and where it points, and the limits on its size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tuner.program_strategies import PROGRAMS, op_args
from tuner.errors import InvalidInput
from tuner.program.catalogue import OPS
from tuner.program.job.build import make_workload
from tuner.program.language.expr import Expr, Read, children
from tuner.program.language.notation import (
    MAX_DEPTH,
    MAX_INDEX_DEPTH,
    MAX_NAME,
    MAX_NESTING,
    MAX_NODES,
    MAX_STAGES,
    MAX_TEXT,
    parse_stages,
)
from tuner.program.language.program import Program


def refused(text: object) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        Program.parse(text)
    assert caught.value.field == "program"
    return caught.value


@pytest.mark.parametrize(
    "text",
    [
        "a[m] = x[m]; b[n] = y[n]",
        "a[m] = x[m]\nb[n] = y[n]",
        "\n ;; a[m] = x[m] ;\r\n\n b[n] = y[n]\n",
        "# two stages\na[m] = x[m]  # one\nb[n] = y[n] # ünïcode is welcome here",
        "a[m] = x[\n  m\n]\nb[n] = (y[n]\n)",
    ],
)
def test_stages_are_parted_by_semicolons_or_lines(text: str) -> None:
    assert [str(stage) for stage in parse_stages(text)] == ["a[m] = x[m]", "b[n] = y[n]"]


@pytest.mark.parametrize(
    ("text", "reducer", "reduce_axes"),
    [
        ("sum(k) x[k]", "sum", ("k",)),
        ("sum(j, k) x[j] * x[k]", "sum", ("j", "k")),
        ("max(k) x[k]", "max", ("k",)),
        ("max(k) -x[k]", "max", ("k",)),
        ("max(j, k) x[j, k]", "max", ("j", "k")),
        ("min(j, k) (x[j, k])", "min", ("j", "k")),
        ("min(i, j, k) -x[i, j, k]", "min", ("i", "j", "k")),
        ("max(x[m], 0)", None, ()),
        ("max(m, n)", None, ()),
        ("max(m, n) * x[m]", None, ()),
        ("max(m, n) - x[m]", None, ()),
        ("prod(k) 2", "prod", ("k",)),
    ],
)
def test_a_reducer_stands_first_and_takes_the_whole_right_hand_side(
    text: str, reducer: str | None, reduce_axes: tuple[str, ...]
) -> None:
    (stage,) = parse_stages(f"out[m, n] = {text}")
    assert (stage.reducer, stage.reduce_axes) == (reducer, reduce_axes)


ERRORS = [
    # (text, line, column, problem, remedy)
    ("out[idx[i]] = x[i]", 1, 5, "a scatter", "gather"),
    ("out[m] = out[m-1] + x[m]", 1, 10, "out reads itself", "scans"),
    ("out[m] += x[m]", 1, 8, "+= updates a tensor in place", "sum(k)"),
    ("out[m] = x[m]\nout[m] = x[m]", 2, 1, "out is assigned twice", "nothing is updated in place"),
    ("out[m+1] = x[m]", 1, 5, "computes an index", "x[m - 1]"),
    ("out[0] = x[m]", 1, 5, "computes an index", "name an axis"),
    ("out[m] = argmax(k) x[m, k]", 1, 10, "argmax is not a function", "no positions"),
    ("out[m] = cumsum(x[m])", 1, 10, "cumsum is not a function", "scans"),
    ("out[m] = nonzero(x[m])", 1, 10, "nonzero is not a function", "depend on data"),
    ("out[m] = mean(k) x[m, k]", 1, 10, "mean is not a function", "extent(k)"),
    ("out[m] = frob(x[m])", 1, 10, "frob is not a function", "abs, cast, cos"),
    ("out[m] = extent(len[m]) * x[m]", 1, 17, "len is a tensor here", "depend on data"),
    ("out[m] = sum(x[m, k], k)", 1, 14, "sum takes the names of axes", "sum(k) x[m, k]"),
    ("out[m] = sum(k < 3) x[m, k]", 1, 14, "sum takes the names of axes", "where(k < 3"),
    ("out[m] = sum() x[m]", 1, 14, "no axis is given", "sum(k)"),
    ("out[m] = 1 + sum(k) x[m, k]", 1, 14, "sum is inside an expression", "a stage of its own"),
    ("out[m] = max(k) max(j) x[m, j, k]", 1, 17, "max takes 2 arguments, got 1", "a stage of its own"),
    ("out[m] = exp(x[m], 2)", 1, 10, "exp takes 1 argument, got 2", "correct"),
    ("out = x[m]", 1, 5, "'=' in place of [", "out[m, n]"),
    ("out[m] = x[m][k]", 1, 14, "a second pair of brackets", "x[m, k]"),
    ("out[m] = x(m)", 1, 10, "x is not a function", "x[...]"),
    ("out[m] = 2 x[m]", 1, 12, "an operator is missing before 'x'", "a * b"),
    ("out[m] = x[m] ** 2", 1, 15, "** is not an operator", "x * x"),
    ("out[m] = x[m] && 1", 1, 15, "&& is not an operator", "&"),
    ("out[m] = x[m] if m else 1", 1, 15, "if is not part of the notation", "where("),
    ("out[m] = np.exp(x[m])", 1, 12, "'.' is not part of the notation", "exp(x[m])"),
    ("out[m] = x[:, m]", 1, 12, "':' is not part of the notation", "slices"),
    ("out[m] = x[m] )", 1, 15, "')' closes nothing", "leave it out"),
    ("out[m] = x[m] = y[m]", 1, 15, "a second =", "== compares"),
    ("out[m] = x[m], y[m]", 1, 14, "','", "one expression"),
    ("out[m] = sum(k) x[m, k", 1, 23, "the end of the stage", ", or ]"),
    ("out[m] =", 1, 9, "the end of the stage in place of an operand", "a number"),
    ("out[m]\n= x[m]", 1, 7, "the end of the stage in place of =", "an expression"),
    ("out[m] = a < b < c", 1, 16, "comparisons do not chain", "(a < b) & (b < c)"),
    ("out[m] = nan * x[m]", 1, 10, "nan is not a constant", "inf"),
    ("exp[m] = x[m]", 1, 1, "exp is a function, not a name", "another name"),
    ("inf[m] = x[m]", 1, 1, "inf is a number, not a name", "another name"),
    ("out[m] = cast(x[m], float8)", 1, 21, "float8 is not a dtype", "float32"),
    ("out[m, m] = x[m]", 1, 8, "axis m is given twice", "each axis once"),
    ("out[m] = sum(m) x[m]", 1, 1, "axis m is kept and reduced", "other axes"),
    ("out[m] = sum(k) x[m]", 1, 1, "sum over k, which is not used", "leave the axis out"),
    ("out[m] = x[n]", 1, 12, "n is not an axis of this stage", "axes here: m"),
    ("a[n] = x[n]\nout[m] = a[m] * n", 2, 17, "n is not an axis of this stage", "extent(n) is its size"),
    ("out[m] = x[m] * x", 1, 17, "x is not an axis", "x[...]"),
    ("a[m] = b[m]\nb[m] = x[m]", 1, 8, "b is read before its stage", "put its stage first"),
    ("out[m] = x[m] + x[m, m]", 1, 17, "x has 1 dims, 2 indices are given", "one for each dim"),
    ("out[m] = 3", 1, 1, "the program reads no input", "at least one tensor"),
    ("", 1, 1, "the program is empty", "out[m]"),
    ("\n;\n", 1, 1, "the program is empty", "out[m]"),
    ("out[m] = x[m * m]", 1, 14, "multiplies two axes", "sums of axes"),
    ("out[m] = x[m // 0]", 1, 14, "divides by 0", "positive constant"),
    ("out[m] = x[m // m]", 1, 14, "divides by something that is not constant", "by constants"),
    ("out[m] = x[exp(m)]", 1, 12, "a function is part of an index", "sums of axes"),
    ("out[m] = x[idx[m] + 1]", 1, 12, "idx[m] is part of an index", "stands alone"),
    ("out[m] = x[a[b[m]]]", 1, 12, "an index is read through an index", "one level"),
    ("out[m] = x[1.5]", 1, 12, "1.5 is no integer", "sums of axes"),
    ("out[m] = x[m] % y[m]", 1, 15, "% by something that may be 0", "positive constant"),
    ("out[m] = x[m] // extent(k)", 1, 15, "// by something that may be 0", "an axis here"),
    ("out[m] = x[m] << 64", 1, 15, "a shift by 64", "from 0 to 63"),
    ("out[m] = x[m] * 99999999999999999999", 1, 17, "too large for an integer", "1e20"),
    ("out[m] = x[m] * 1e999", 1, 17, "too large", "inf"),
    ("out[m] = x[m] * ²", 1, 17, "'²' is not part of the notation", "ASCII"),
    ("out[m] = x[m] * ٣", 1, 17, "'٣' is not part of the notation", "ASCII"),
    ("out[ｍ] = x[m]", 1, 5, "'ｍ' is not part of the notation", "ASCII"),
    ("out[m] = x[m]\x00", 1, 14, "'\\x00' is not part of the notation", "ASCII"),
    ("out[m] = x[m] # \x00", 1, 17, "'\\x00' is not part of the notation", "ASCII"),
    ("out[m] = x[m] # \ud800", 1, 17, "'\\ud800' is not part of the notation", "ASCII"),
]


@pytest.mark.parametrize(("text", "line", "column", "problem", "remedy"), ERRORS, ids=[e[0][:30] for e in ERRORS])
def test_what_is_wrong_is_shown_under_a_caret(text: str, line: int, column: int, problem: str, remedy: str) -> None:
    error = refused(text)
    first, shown, caret = error.problem.split("\n")
    assert first.startswith(f"line {line}, column {column}: ")
    assert problem in first
    assert remedy in error.remedy
    source = text.split("\n")[line - 1]
    assert shown.rstrip() == f"    {source}".replace("\x00", " ").replace("\ud800", " ").rstrip()
    assert caret == " " * (4 + column - 1) + "^"


def test_a_message_reads_as_four_lines() -> None:
    error = refused("top[m] = max(n) x[m, n]\nout[m] = x[m, n] - top[m]")
    assert str(error) == (
        "program: line 2, column 15: n is not an axis of this stage\n"
        "    out[m] = x[m, n] - top[m]\n"
        "                  ^\n"
        "  axes here: m; extent(n) is its size"
    )


def test_a_long_line_is_shown_around_the_column() -> None:
    error = refused(f"out[m] = {'x[m] + ' * 40}y")
    _, shown, caret = error.problem.split("\n")
    assert len(shown) <= 4 + 120
    assert shown[caret.index("^")] == "y"


# -- limits -------------------------------------------------------------------------------------------------------
def sum_of(count: int) -> str:
    return f"out[m] = {' + '.join(['x[m]'] * count)}"


def test_a_sum_has_as_many_levels_as_terms() -> None:
    (stage,) = parse_stages(sum_of(MAX_DEPTH))
    assert _height(stage.body) == MAX_DEPTH
    assert f"more than {MAX_DEPTH} levels" in refused(sum_of(MAX_DEPTH + 1)).problem
    half = f"({sum_of(MAX_DEPTH - 1)[9:]})"
    assert parse_stages(f"out[m] = {half} + {half}")


def _height(expr: Expr) -> int:
    return 1 if isinstance(expr, Read) else 1 + max(map(_height, children(expr)), default=0)


@pytest.mark.parametrize("opening", ["exp(", "-(", "abs(-", "cast("])
def test_what_is_as_high_as_allowed_prints_and_is_read_again(opening: str) -> None:
    closing = ", float32)" if opening == "cast(" else ")"
    levels = MAX_DEPTH - 1 if opening != "abs(-" else (MAX_DEPTH - 1) // 2
    text = f"out[m] = {opening * levels}x[m]{closing * levels}"
    program = Program.parse(text)
    assert Program.parse(str(program)) == program
    assert hash(program) == hash(Program.parse(str(program)))
    assert "levels" in refused(f"out[m] = {opening * (levels + 1)}x[m]{closing * (levels + 1)}").problem


@pytest.mark.parametrize(
    "text",
    [
        "out[m] = " + "-" * 5000 + "x[m]",
        "out[m] = " + "(" * 3000 + "x[m]" + ")" * 3000,
        "out[m] = " + "exp(" * 1500,
        "out[m] = " + "x[" * 3000,
        "out[m] = x[" + "(" * 3000,
        "out[m] = x[" + "-" * 3000 + "m]",
        "out[m] = " + "-(" * 2000,
        "out[m] = " + "where(m<n," * 700,
        "out[m] = " + "1<(" * 2000,
        "out[" * 1500,
    ],
)
def test_deep_nesting_is_refused_by_its_depth(text: str) -> None:
    assert "column" in refused(text).problem


def test_brackets_alone_may_be_nested_as_deeply_as_anything_prints() -> None:
    assert parse_stages("out[m] = " + "(" * (MAX_NESTING - 2) + "m" + ")" * (MAX_NESTING - 2))
    text = "out[m] = " + "(" * MAX_NESTING + "m" + ")" * MAX_NESTING
    assert "nested deeper" in refused(text).problem


def test_an_index_has_a_limit_of_its_own() -> None:
    assert parse_stages(f"out[m] = x[{' + '.join(['m'] * MAX_INDEX_DEPTH)}]")
    text = f"out[m] = x[{' + '.join(['m'] * (MAX_INDEX_DEPTH + 1))}]"
    assert f"an index of more than {MAX_INDEX_DEPTH} levels" in refused(text).problem
    assert "multiplied out" in refused(f"out[m] = x[{'m // 2 + ' * 4}{'(' * 6}m{'//2 + 1)' * 6}]").problem


def test_nodes_are_counted() -> None:
    # Each line has 29 reads of 2 nodes, and 28 sums.
    line = "[m] = " + " + ".join(["x[m]"] * 29)
    count = 29 * 2 + 28
    lines = [f"t{number}{line}" for number in range(MAX_NODES // count)]
    assert len(parse_stages("\n".join(lines))) == MAX_NODES // count
    left = MAX_NODES - count * len(lines)
    fits = [*lines, f"last[m] = {'-' * (left - 1)}m"]
    assert parse_stages("\n".join(fits))
    assert f"more than {MAX_NODES} operations" in refused("\n".join([*fits, "one[m] = m"])).problem


def test_stages_names_and_text_have_limits() -> None:
    stages = [f"t{number}[m] = x[m]" for number in range(MAX_STAGES)]
    assert len(parse_stages("\n".join(stages))) == MAX_STAGES
    assert f"more than {MAX_STAGES} stages" in refused("\n".join([*stages, "u[m] = x[m]"])).problem
    assert parse_stages(f"{'t' * MAX_NAME}[m] = x[m]")
    assert f"a name of {MAX_NAME + 1} characters" in refused(f"{'t' * (MAX_NAME + 1)}[m] = x[m]").problem
    assert "a number of 41 characters" in refused(f"out[m] = x[m] * {'1' * 41}").problem
    assert "characters" in refused("x" * (MAX_TEXT + 1)).problem
    assert "17 axes in one stage" in refused(f"out[{', '.join(f'a{n}' for n in range(17))}] = x[a0]").problem
    assert "17 indices" in refused(f"out[m] = x[{', '.join(['m'] * 17)}]").problem


def test_axes_of_all_stages_are_counted() -> None:
    stages = [f"t{n}[{', '.join(f'a{n}_{i}' for i in range(10))}] = x[a{n}_0]" for n in range(7)]
    assert "70 axes" in refused("\n".join(stages)).problem
    sizes = " + ".join(f"extent(s{n})" for n in range(64))
    assert "65 axes and other sizes" in refused(f"out[m] = {sizes}; two[m] = x[m]").problem


@pytest.mark.parametrize("text", [None, 3, 1.5, True, ["out[m] = x[m]"], {"a": 1}, b"out[m] = x[m]"])
def test_a_program_is_text(text: object) -> None:
    assert "is not text" in refused(text).problem


# -- anything at all ----------------------------------------------------------------------------------------------
TEXTS = [str(make_workload(op, op_args(op)).program) for op in sorted(OPS)]
WORDS = ("//", ">>", "\n", "sum(k) ", "max(", "where(", "cast(", "extent(", "inf", "nan", "1e9", "out[m]")
PIECES = st.sampled_from([*"[](),=+-*%<&;# mx0", *WORDS, "9" * 30, "\x00", "é", "\ud800", "-" * 60])


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A program with pieces cut, doubled, or put in."""
    text = draw(st.sampled_from(TEXTS) | PROGRAMS.map(lambda data: data["program"]))
    for _ in range(draw(st.integers(1, 4))):
        start, length = draw(st.integers(0, len(text))), draw(st.integers(0, 12))
        cut = text[start : start + length]
        new = draw(st.just("") | PIECES | st.just(cut * 2) | st.just(cut * 40))
        text = text[:start] + new + text[start + length :]
    return text


@given(mutated() | st.text(max_size=60) | st.lists(PIECES, max_size=30).map("".join))
def test_any_text_is_a_program_or_refused_with_line_and_column(text: str) -> None:
    try:
        program = Program.parse(text)
    except InvalidInput as error:
        assert error.field == "program"
        assert error.remedy
        assert error.problem.startswith("line ") or f"at most {MAX_TEXT}" in error.remedy
    else:
        assert Program.parse(str(program)) == program
