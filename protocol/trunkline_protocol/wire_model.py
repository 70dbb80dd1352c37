"""The base of every pydantic model of the vocabulary: frozen, camelCase outside, extras kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
)
from pydantic.alias_generators import to_camel

from trunkline_protocol.frozen import FrozenDict, freeze, thaw

# Scalars are strict, so that nothing is converted behind the caller's back; models are not, so that
# lists become tuples and maps become models.
Text = StrictStr
Integer = StrictInt
Number = StrictInt | StrictFloat
Flag = StrictBool

# Any lossless-JSON value, deep-frozen when the model is built.
JsonValue = Annotated[object, AfterValidator(freeze)]


def plain(value: object) -> object:
    """Return the JSON form of a field: models as camelCase maps, tuples as lists, all detached."""
    if isinstance(value, WireModel):
        return value.to_dict()
    if isinstance(value, tuple):
        return [plain(item) for item in cast("tuple[object, ...]", value)]
    return thaw(value)


class WireModel(BaseModel):
    """A frozen value; `None` in a declared optional field means that the key is absent."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="allow",
        allow_inf_nan=False,
        hide_input_in_errors=True,
        defer_build=True,  # an agent pays at import only for what it uses
    )

    def model_post_init(self, context: Any, /) -> None:
        """Freeze the keys that the model does not declare."""
        del context
        extra = self.__pydantic_extra__
        if extra:
            object.__setattr__(
                self, "__pydantic_extra__", FrozenDict(cast("dict[str, object]", freeze(extra)))
            )

    def to_dict(self) -> dict[str, object]:
        """Return the camelCase map; declared fields first, then the extra keys unchanged."""
        out: dict[str, object] = {}
        for name, info in type(self).model_fields.items():
            value: object = getattr(self, name)
            if value is not None:
                out[info.alias or name] = plain(value)
        if self.__pydantic_extra__:
            out.update(cast("dict[str, object]", thaw(self.__pydantic_extra__)))
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Self:
        """Read a camelCase map.

        Raises:
            ValueError: a field is missing or has a wrong type; the text names it.
        """
        try:
            return cls.model_validate(dict(data))
        except ValidationError as exc:
            raise ValueError(first_error(exc)) from None  # the cause would show the input


def first_error(exc: ValidationError) -> str:
    """Describe the first error and its place; the value stays out, since it may be a prompt."""
    error = exc.errors(include_url=False, include_context=False, include_input=False)[0]
    place, message = error["loc"], error["msg"]
    if error["type"] == "string_unicode":
        # pydantic reports this for undeclared keys only, and adds the tag of an open union.
        place = place[:-1] if place[-1:] == ("unknown",) else place
        message = "a key is not valid Unicode: it contains a lone surrogate"
    path = ".".join(str(part) for part in place)
    return f"{path}: {message}" if path else message
