"""Tags that name side outputs."""

from __future__ import annotations

from typing import Any, ClassVar, Generic

from typing_extensions import Self, TypeVar

from flinkray.core.values import IMMUTABLE
from flinkray.state.descriptors import TypeOfValues

T = TypeVar("T", default=Any)


class OutputTag(Generic[T]):
    """Names a side output. A function sends a value to it with ``yield tag, value``. Tags with
    equal ids are the same side output of an operator. A tag may be used on several operators."""

    in_use: ClassVar[bool] = False
    """Whether any tag exists in this process. If not, results need not be searched for tags."""

    tag_id: str
    type_info: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        OutputTag.in_use = True  # here rather than in __init__: unpickling comes this way too
        return super().__new__(cls)

    def __init__(self, tag_id: str, type_info: TypeOfValues[T] | None = None) -> None:
        if not tag_id:
            raise ValueError("an OutputTag needs an id that is not empty")
        self.tag_id = tag_id
        self.type_info = type_info

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputTag) and self.tag_id == other.tag_id

    def __hash__(self) -> int:
        return hash(self.tag_id)

    def __repr__(self) -> str:
        return f"OutputTag({self.tag_id!r})"


IMMUTABLE.add(OutputTag)
