"""Proves that Spark computes the same rows in each partition, and fixes how it divides rows.

Settings of the session (``DIVIDING``) decide how rows are divided among partitions. Most of the
settings follow from the slots of a job unless a user sets them. A job may continue from a savepoint
in the middle of a DataFrame. Then it must divide the DataFrame as the earlier job did, whatever its
slots are. So these settings are part of the savepoint.

The proof uses the physical plan. It knows plan nodes, expressions, aggregate functions and file
formats by their names. A name that is not listed here proves nothing, and so does a new version of
Spark until its names were checked. This is the safe side: such a DataFrame is read only when it is
complete.

A fingerprint identifies the computation of a proven plan: nodes and expressions with all their
arguments, the pieces of files and the values of each partition, and the settings of the session. It
includes subqueries and both sides of a join.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import uuid
from collections.abc import Mapping
from enum import IntEnum
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from flinkray.file_results import PublishedPartitions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

_LEAVES = "spark.sql.leafNodeDefaultParallelism"
DIVIDING = (
    _LEAVES,
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.openCostInBytes",
    "spark.sql.files.minPartitionNum",
    "spark.sql.files.maxPartitionNum",
    "spark.sql.shuffle.partitions",
    "spark.sql.autoBroadcastJoinThreshold",
    "spark.sql.execution.arrow.maxRecordsPerBatch",
)
"""Names of the settings that decide the division.

The last one divides a partition into batches, of which a reader has read some.
"""

_LOOK_INTERVAL = 0.2
_MOST_LOOKS = 300
"""Most looks for the earlier division: without a reader of the DataFrame, it is never known."""


def fixed_division(session: SparkSession, before: Mapping[str, str]) -> dict[str, str]:
    """Set how a session divides rows among partitions, and return all settings that now decide it.
    *before*: the settings of the job that took the savepoint; empty: the session keeps its own."""
    if before:
        for name in DIVIDING:
            if name in before:
                session.conf.set(name, before[name])
            else:
                session.conf.unset(name)
    own = {name: session.conf.get(name, None) for name in DIVIDING}
    if own[_LEAVES] is None:
        own[_LEAVES] = str(session.sparkContext.defaultParallelism)
    return {name: value for name, value in own.items() if value is not None}


def division_before(location: str, stopping: threading.Event) -> dict[str, str]:
    """Return the settings by which the job that took the savepoint divided rows. Waits until the
    stream reports them, at most a minute. Empty: no rows were read before the savepoint, the stream
    has reported nothing, or *stopping* was set."""
    published = PublishedPartitions(location)
    for _ in range(_MOST_LOOKS):
        division = published.division()
        if division is not None or stopping.wait(_LOOK_INTERVAL):
            return division or {}
    logger.warning("nobody says how the rows at %s were divided before", location)
    return {}


class Repeats(IntEnum):
    """Tells how much of a plan node's output is the same in every computation."""

    NOTHING = 0
    """Nothing is the same, or nothing is known about it."""
    ROWS = 1
    """All rows together are the same. They may be in other partitions."""
    PARTITIONS = 2
    """The rows of each partition are the same. Their order may differ."""
    ORDER = 3
    """The rows of each partition and their order are the same."""


def is_repeatable(frame: DataFrame, *, is_written: bool = False) -> bool:
    """Return whether each partition has the same rows, in any order, when it is computed again.

    For a DataFrame that seems repeatable, broadcasts and subqueries are computed: adaptive
    execution needs them to decide on the rest.

    Args:
        is_written: the last step of the DataFrame is the function that writes its partitions; the
            answer is about this function's input.
    """
    if not _seems_repeatable(frame) or _Plan(frame, is_written).repeats < Repeats.PARTITIONS:
        return False
    level: str = frame._jdf.queryExecution().toRdd().outputDeterministicLevel().toString()
    return (
        level != _INDETERMINATE
        and _Plan(frame, is_written, is_final=True).repeats >= Repeats.PARTITIONS
    )


def fingerprint(frame: DataFrame, *, is_written: bool = False) -> str:
    """Return a fingerprint of the content of a DataFrame. DataFrames with equal fingerprints
    have equal partitions. For a DataFrame that is not repeatable, each call returns another
    fingerprint."""
    if not _seems_repeatable(frame):
        return uuid.uuid4().hex
    frame._jdf.queryExecution().toRdd()  # from now on the plan is final
    plan = _Plan(frame, is_written, is_final=True, describes=True)
    if plan.repeats < Repeats.PARTITIONS:
        return uuid.uuid4().hex
    content = json.dumps([*plan.described, *_settings(frame)])
    return blake2b(content.encode(), digest_size=16).hexdigest()


_INDETERMINATE = "INDETERMINATE"
"""Spark's name for rows that are distributed in turn, in the order of their arrival."""


_FOLDED = re.compile(
    r"aes_encrypt\(|\bcast\(\s*(?:now|today|tomorrow|yesterday)\s+as\s+(?:date|timestamp)",
    re.IGNORECASE,
)


def _seems_repeatable(frame: DataFrame) -> bool:
    """Return whether a DataFrame seems repeatable, from its plan before optimization: the optimizer
    replaces expressions such as the current time by constants, which differ the next time."""
    analyzed = frame._jdf.queryExecution().analyzed()
    context: Any = frame.sparkSession.sparkContext
    pattern = context._jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    has_times_of_now = analyzed.containsPattern(pattern) or _FOLDED.search(analyzed.toString())
    return analyzed.deterministic() and not has_times_of_now and not _skips_files(frame)


# --- settings -------------------------------------------------------------------------------------

_SKIPPING = ("ignoreMissingFiles", "ignoreCorruptFiles")
"""Options with which rows may be missing that a failure has kept Spark from reading."""
_OF_ROWS = ("spark.sql.", "spark.hadoop.", "spark.files.")
"""Beginnings of settings that may influence rows."""
_NOT_OF_ROWS = (
    "spark.sql.warehouse.dir",  # each attempt has its own
    "spark.sql.ui.",
    "spark.sql.debug.",
    "spark.sql.event.",
    "spark.sql.execution.arrow.",
    *DIVIDING,  # the plan shows how they have divided its rows
)
_SECRET = re.compile(r"secret|password|token|credential|access\W?key", re.IGNORECASE)
"""Names of settings with secrets, which change while the data stay."""
_BETWEEN = "\x01"


def _entries(scala_map: Any) -> list[tuple[str, str]]:
    if scala_map.isEmpty():
        return []
    pairs = (entry.partition(" -> ") for entry in scala_map.mkString(_BETWEEN).split(_BETWEEN))
    return sorted((name, value) for name, _, value in pairs if not _SECRET.search(name))


def _settings(frame: DataFrame) -> list[str]:
    conf = frame._jdf.sparkSession().conf()
    return [
        frame.sparkSession.version,
        frame.schema.json(),
        f"time zone {conf.get('spark.sql.session.timeZone')}",
        *(
            f"{name}={value}"
            for name, value in _entries(conf.getAll())
            if name.startswith(_OF_ROWS) and not name.startswith(_NOT_OF_ROWS)
        ),
    ]


def _skips_files(frame: DataFrame) -> bool:
    conf = frame.sparkSession.conf
    names = [f"spark.sql.files.{name}" for name in _SKIPPING]
    return any(conf.get(name, "false") == "true" for name in names)


# --- plans ----------------------------------------------------------------------------------------

_EXPRESSION_ID = re.compile(r"#(\d+)L?\b")
_UNSTABLE = re.compile(r"\[?(?:plan_)?id=#?\d+\]?|@[0-9a-f]+\b")
"""Numbers of plan nodes, which depend on earlier work of the session, and addresses of objects."""
_OWN_ID = re.compile(r"\bExprId\([^)]*\)")
_COLLATED = re.compile(r"\bStringType\(|\bcollate\b", re.IGNORECASE)
"""Strings that can be equal but not identical: the order decides which one represents a group."""
_FRACTIONS = re.compile(r"\b(?:float|double)\b")
_MOST_FIELDS = 1_000_000


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CATALYST = "org.apache.spark.sql.catalyst.expressions."
_EXECUTION = "org.apache.spark.sql.execution."

_WRITERS = ("python.PythonMapInArrowExec", "python.MapInArrowExec")
"""Nodes that write partitions, in Spark 3 and 4."""
_SAME_AS_CHILD = _names(
    """
    WholeStageCodegenExec InputAdapter ColumnarToRowExec RowToColumnarExec ProjectExec FilterExec
    ExpandExec GenerateExec SubqueryExec SubqueryBroadcastExec SubqueryAdaptiveBroadcastExec
    exchange.BroadcastExchangeExec
    """
)
"""Nodes whose result for a row depends only on that row, or that only pass rows on."""
_ADAPTIVE = "adaptive.AdaptiveSparkPlanExec"
_STAGES = _names(
    """
    adaptive.BroadcastQueryStageExec adaptive.ResultQueryStageExec adaptive.ShuffleQueryStageExec
    """
)
_REUSED = ("ReusedSubqueryExec", "exchange.ReusedExchangeExec")
_AGGREGATES = _names(
    """
    aggregate.HashAggregateExec aggregate.ObjectHashAggregateExec aggregate.SortAggregateExec
    """
)
_JOINS = _names(
    """
    joins.BroadcastHashJoinExec joins.BroadcastNestedLoopJoinExec joins.CartesianProductExec
    joins.ShuffledHashJoinExec joins.SortMergeJoinExec
    """
)
_OF_UNMATCHED_ROWS = re.compile(
    r"\bFullOuter\b|LeftOuter, BuildLeft|BuildLeft, LeftOuter|"
    r"RightOuter, BuildRight|BuildRight, RightOuter|"
    r"BuildLeft, (?:LeftSemi|LeftAnti|Existence)"
)
"""Join types with unmatched rows of the broadcast side.

A nested loop distributes these rows in order of arrival.
"""
_FORMATS = _names(
    """
    ParquetFileFormat OrcFileFormat CSVFileFormat JsonFileFormat TextFileFormat BinaryFileFormat
    XmlFileFormat AvroFileFormat
    """
)
_SPARK = "org.apache.spark.sql."


class _Plan:
    def __init__(
        self,
        frame: DataFrame,
        is_written: bool,
        *,
        is_final: bool = False,
        describes: bool = False,
    ) -> None:
        """Examine the physical plan of a DataFrame; the result is in :attr:`repeats`.

        Args:
            is_final: whether to use the plan that adaptive execution has decided on.
            describes: whether to describe what the plan computes.
        """
        self._is_final = is_final
        self._jvm: Any = frame.sparkSession.sparkContext._jvm
        self._describes = describes
        self._deals_out_sorted = (
            frame.sparkSession.conf.get("spark.sql.execution.sortBeforeRepartition", "true")
            == "true"
        )
        self._is_written = is_written
        self._ids: dict[str, str] = {}
        self._seen: dict[int, Repeats] = {}
        """Result by the number of a plan node: several places of a plan may share a node."""
        self.described: list[str] = []
        self.repeats = self._node(frame._jdf.queryExecution().executedPlan(), is_adaptive=False)

    def _say(self, *texts: str) -> None:
        if self._describes:
            self.described += texts

    def _stable(self, text: str) -> str:
        """Return *text* with the ids of columns replaced by numbers, in the order in which the ids
        first appear. So equal plans have equal texts, although Spark gives columns new ids each
        time."""

        def numbered(match: re.Match[str]) -> str:
            return self._ids.setdefault(match[1], f"#{len(self._ids)}")

        return _EXPRESSION_ID.sub(numbered, _UNSTABLE.sub("", text))

    # --- nodes ------------------------------------------------------------------------------------

    def _node(self, node: Any, is_adaptive: bool) -> Repeats:
        number = node.id()
        if number in self._seen:
            self._say(f"again {[*self._seen].index(number)}")
            return self._seen[number]
        repeats = self._new_node(node, is_adaptive)
        self._seen[number] = repeats
        return repeats

    def _new_node(self, node: Any, is_adaptive: bool) -> Repeats:
        name: str = node.getClass().getName()
        if not name.startswith(_EXECUTION):
            return Repeats.NOTHING
        name = name.removeprefix(_EXECUTION)
        if name == _ADAPTIVE:
            inner = node.executedPlan() if self._is_final else node.initialPlan()
            return self._node(inner, is_adaptive=True)
        if name in _STAGES:
            return self._node(node.plan(), is_adaptive)
        if name in _REUSED:
            self._say(self._stable(node.simpleString(_MOST_FIELDS)))
            return self._node(node.child(), is_adaptive)
        if self._is_written and name in _WRITERS:
            self._is_written = False
            return self._node(node.children().apply(0), is_adaptive)
        self._say(name)
        if self._describes:
            self._say(self._stable(node.simpleString(_MOST_FIELDS)))
        if not all(self._expression(one, is_adaptive) for one in _each(node.expressions())):
            return Repeats.NOTHING
        children = [self._node(child, is_adaptive) for child in _each(node.children())]
        self._say("end")
        least = min(children, default=Repeats.ORDER)
        return self._rule(name, node, least, is_adaptive) if least else Repeats.NOTHING

    def _rule(self, name: str, node: Any, least: Repeats, is_adaptive: bool) -> Repeats:
        """Return how repeatable the output of the plan node *node* of class *name* is. *least*: the
        lowest degree among its children."""
        if name in _SAME_AS_CHILD:
            return least if node.children().size() else Repeats.NOTHING
        if name == "UnionExec":
            return least
        if name == "FileSourceScanExec":
            return self._scan(node)
        if name == "RangeExec":
            return Repeats.ORDER
        if name == "LocalTableScanExec":
            return self._values(node)
        if name == "SampleExec":  # samples rows one after the other, from a seed
            return least if least is Repeats.ORDER else Repeats.NOTHING
        if name == "SortExec" or name in _AGGREGATES:
            return min(least, Repeats.PARTITIONS)
        if name in _JOINS:
            text = node.simpleString(_MOST_FIELDS)
            if name == "joins.BroadcastNestedLoopJoinExec" and _OF_UNMATCHED_ROWS.search(text):
                return Repeats.ROWS
            return self._join(name, node, least)
        if name == "exchange.ShuffleExchangeExec":
            return self._shuffle(node, least, is_adaptive)
        if name == "adaptive.AQEShuffleReadExec":
            return Repeats.ROWS
        return Repeats.NOTHING

    def _join(self, name: str, node: Any, least: Repeats) -> Repeats:
        """Return how repeatable the output of a join is. *least*: the lowest degree of its inputs.
        In a broadcast join, only the partitions of the side that is not broadcast matter."""
        if not name.startswith("joins.Broadcast"):
            return min(least, Repeats.PARTITIONS)
        streamed = node.left() if node.buildSide().toString() == "BuildRight" else node.right()
        return (
            least if least is Repeats.ORDER else min(self._seen[streamed.id()], Repeats.PARTITIONS)
        )

    def _shuffle(self, node: Any, least: Repeats, is_adaptive: bool) -> Repeats:
        """Return how repeatable the output of a shuffle is. In adaptive execution at most all rows
        together are the same, because Spark joins and splits partitions by size."""
        partitioning = node.outputPartitioning()
        kind = partitioning.getClass().getSimpleName().removesuffix("$")
        if kind == "RoundRobinPartitioning":  # by the order of rows, or of their hashes
            needed = Repeats.PARTITIONS if self._deals_out_sorted else Repeats.ORDER
            is_kept = least >= needed
        else:  # a sample decides the bounds of ranges
            is_kept = kind in ("HashPartitioning", "SinglePartition")
        return Repeats.PARTITIONS if is_kept and not is_adaptive else Repeats.ROWS

    # --- leaves -----------------------------------------------------------------------------------

    def _scan(self, node: Any) -> Repeats:
        """Return how repeatable a scan of files is, and describe the files for the fingerprint:
        each piece by its place in its file, and the file by its size and the time of its last
        change."""
        relation = node.relation()
        file_format = relation.fileFormat().getClass()
        is_known = file_format.getSimpleName() in _FORMATS
        if not is_known or not file_format.getName().startswith(_SPARK):
            return Repeats.NOTHING
        options = _entries(relation.options())
        skipping = {name.lower() for name in _SKIPPING}
        if any(name.lower() in skipping and value != "false" for name, value in options):
            return Repeats.NOTHING
        if self._describes:
            pieces = node.inputRDDs().apply(0).filePartitions()
            self._say(
                file_format.getName(),
                relation.dataSchema().json(),
                relation.partitionSchema().json(),
                relation.bucketSpec().toString(),
                str(options),
                self._serialized(pieces),
            )
        return Repeats.ORDER

    def _values(self, node: Any) -> Repeats:
        if self._describes:
            self._say(
                str(node.inputRDDs().apply(0).getNumPartitions()),
                self._serialized(node.executeCollect()),
            )
        return Repeats.ORDER

    def _serialized(self, value: Any) -> str:
        """Return a hash of a value as Java serializes it for executors; the hosts of files are not
        part of this form."""
        content = bytes(self._jvm.org.apache.spark.util.Utils.serialize(value))
        return blake2b(content, digest_size=16).hexdigest()

    # --- expressions ------------------------------------------------------------------------------

    def _expression(self, expression: Any, is_adaptive: bool) -> bool:
        """Return whether an expression has the same value each time for the same row. An aggregate
        may depend on all rows of its group, but must not depend on their order."""
        name: str = expression.getClass().getName()
        if name.startswith(_EXECUTION):
            return self._subquery(expression, name.removeprefix(_EXECUTION), is_adaptive)
        if not name.startswith(_CATALYST):
            return name in _PARTITIONINGS and self._described(name, expression, is_adaptive)
        name = name.removeprefix(_CATALYST)
        if name.startswith("aggregate."):
            if not _is_commutative(name.removeprefix("aggregate."), expression):
                return False
        elif name not in _EXPRESSIONS:
            return False
        return self._described(name, expression, is_adaptive)

    def _described(self, name: str, expression: Any, is_adaptive: bool) -> bool:
        if name in _EXACT_IN_SQL:  # their values have unique texts in SQL
            kind = expression.dataType()
            self._say(f"{name} {expression.sql()} {kind.json()}")
            if _COLLATED.search(kind.toString()):
                return False
        elif name in _COLUMNS:
            kind = expression.dataType()
            self._say(f"{name} {self._stable(expression.toString())} {kind.json()}")
            return not _COLLATED.search(kind.toString())
        elif name != "CaseWhen":  # all arguments of CaseWhen are its children
            arguments = _OWN_ID.sub("", expression.argString(_MOST_FIELDS))
            self._say(f"{name} {arguments}")
            if _COLLATED.search(arguments):
                return False
        children = _each(expression.children())
        self._say(str(len(children)))
        return all(self._expression(child, is_adaptive) for child in children)

    def _subquery(self, expression: Any, name: str, is_adaptive: bool) -> bool:
        if name not in ("ScalarSubquery", "InSubqueryExec"):
            return False
        self._say(name)
        if not self._node(expression.plan(), is_adaptive):
            return False
        return all(self._expression(child, is_adaptive) for child in _each(expression.children()))


def _each(seq: Any) -> list[Any]:
    return [seq.apply(place) for place in range(seq.size())]


def _is_commutative(name: str, expression: Any) -> bool:
    """Return whether an aggregate function gives the same value for every order of rows. A sum of
    fractions does not, because it is rounded after each addition."""
    if name == "AggregateExpression":
        return True
    if name not in _COMMUTATIVE:
        return False
    if name not in ("Sum", "Min", "Max"):
        return True
    if name == "Sum" and "TRY" in expression.argString(_MOST_FIELDS):
        return False
    kinds = [child.dataType().catalogString() for child in _each(expression.children())]
    return not any(_FRACTIONS.search(kind) or _is_long_decimal(name, kind) for kind in kinds)


def _is_long_decimal(name: str, kind: str) -> bool:
    """Return whether aggregate *name* is a sum of decimals (type *kind*) that are so long that a
    partial sum may overflow. Then the result depends on the order of rows."""
    match = re.fullmatch(r"decimal\((\d+),-?\d+\)", kind)
    return name == "Sum" and match is not None and int(match[1]) > 28


_COMMUTATIVE = _names(
    """
    Count Sum Min Max BitAndAgg BitOrAgg BitXorAgg HyperLogLogPlusPlus BloomFilterAggregate
    """
)
_COLUMNS = ("AttributeReference", "NamedLambdaVariable")
_EXACT_IN_SQL = ("Literal", "InSet")
_PARTITIONINGS = frozenset(
    f"org.apache.spark.sql.catalyst.plans.physical.{name}"
    for name in ("HashPartitioning", "RangePartitioning")
)
_EXPRESSIONS = _names(
    """
    Alias AttributeReference BoundReference Literal SortOrder DynamicPruningExpression KnownNotNull
    KnownNullable ToPrettyString
    And Or Not EqualTo EqualNullSafe GreaterThan GreaterThanOrEqual LessThan LessThanOrEqual In
    InSet IsNull IsNotNull IsNaN AtLeastNNonNulls
    If CaseWhen Coalesce NaNvl Greatest Least
    Add Subtract Multiply Divide IntegralDivide Remainder Pmod UnaryMinus UnaryPositive Abs
    Acos Acosh Asin Asinh Atan Atan2 Atanh Bin BRound Cbrt Ceil RoundCeil Conv Cos Cosh Cot Csc
    EulerNumber Exp Expm1 Factorial Floor RoundFloor Hex Hypot Log Log10 Log1p Log2 Logarithm Pi
    Pow Rint Round Sec ShiftLeft ShiftRight ShiftRightUnsigned Signum Sin Sinh Sqrt Tan Tanh
    ToDegrees ToRadians Unhex WidthBucket
    BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitwiseCount BitwiseGet
    Cast CheckOverflow CheckOverflowInSum MakeDecimal UnscaledValue DecimalAddNoOverflowCheck
    DecimalDivideWithOverflowCheck
    Ascii Base64 BitLength Chr Concat ConcatWs Contains Elt EndsWith FindInSet FormatNumber
    FormatString InitCap Length Levenshtein Like LikeAll LikeAny NotLikeAll NotLikeAny Lower
    OctetLength Overlay ParseUrl RLike RegExpExtract RegExpExtractAll RegExpInStr RegExpReplace
    SoundEx StartsWith StringDecode StringInstr StringLocate StringLPad StringRepeat StringReplace
    StringRPad StringSpace StringSplit StringTranslate StringTrim StringTrimLeft StringTrimRight
    Substring SubstringIndex UnBase64 Upper Encode Decode Empty2Null
    AddMonths DateAdd DateAddInterval DateAddYMInterval DateDiff DateFormatClass DateFromUnixDate
    DateSub DayOfMonth DayOfWeek DayOfYear FromUnixTime FromUTCTimestamp GetTimestamp Hour LastDay
    MakeDate MakeTimestamp MicrosToTimestamp MillisToTimestamp Minute Month MonthsBetween NextDay
    PreciseTimestampConversion Quarter Second SecondsToTimestamp SecondWithFraction SubtractDates
    SubtractTimestamps TimeAdd TimestampAdd TimestampAddInterval TimestampAddYMInterval
    TimestampDiff ToUnixTimestamp ToUTCTimestamp TruncDate TruncTimestamp UnixDate UnixMicros
    UnixMillis UnixSeconds UnixTimestamp WeekDay WeekOfYear Year YearOfWeek
    ExtractANSIIntervalDays ExtractANSIIntervalHours ExtractANSIIntervalMinutes
    ExtractANSIIntervalMonths ExtractANSIIntervalSeconds ExtractANSIIntervalYears
    DivideDTInterval DivideYMInterval MakeDTInterval MakeYMInterval MultiplyDTInterval
    MultiplyYMInterval
    CreateArray CreateNamedStruct GetArrayItem GetArrayStructFields GetStructField ElementAt
    ArrayContains ArrayDistinct ArrayExcept ArrayExists ArrayFilter ArrayForAll ArrayInsert
    ArrayIntersect ArrayJoin ArrayMax ArrayMin ArrayPosition ArrayRemove ArrayRepeat ArraySort
    ArraysOverlap ArraysZip ArrayTransform ArrayUnion Flatten Reverse Sequence Size Slice SortArray
    ZipWith LambdaFunction NamedLambdaVariable
    CreateMap GetMapValue MapConcat MapEntries MapFilter MapFromArrays MapFromEntries MapKeys
    MapValues StringToMap
    CsvToStructs GetJsonObject JsonObjectKeys JsonToStructs JsonTuple LengthOfJsonArray
    StructsToCsv StructsToJson
    Crc32 Md5 Murmur3Hash Sha1 Sha2 XxHash64 BloomFilterMightContain
    Explode Inline PosExplode ReplicateRows Stack
    """
)
"""Expressions whose values depend only on their arguments."""
