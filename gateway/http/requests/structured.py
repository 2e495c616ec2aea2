"""The fields of the HTTP API that give the output a form: OpenAI's, vLLM's, and vLLM's older ones."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.grammars import structured
from gateway.http.requests.body import Body
from specdec.errors import FieldInvalid, FieldRequired
from specdec.sampling.grammar import Grammar

Schema = dict[str, Any]
Texts = Annotated[list[str], Field(min_length=1, fail_fast=True)]


class JsonSchemaBody(Body):
    """A named JSON Schema; it is always followed, `strict` or not."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Body):
    """OpenAI's form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaBody | None = None

    def form(self) -> tuple[str, Grammar] | None:
        """The grammar and the name of its field; None for any text."""
        if (self.json_schema is None) != (self.type != "json_schema"):
            raise FieldRequired(
                "response_format.json_schema belongs to type json_schema", "response_format.json_schema"
            )
        if self.type == "text":
            return None
        if self.json_schema is None:
            return "response_format", structured.json_schema({"type": "object"}, "response_format")
        name, schema = "response_format.json_schema.schema", self.json_schema.schema_
        return name, structured.json_schema({} if schema is None else schema, name)


class StructuredOutputs(Body):
    """vLLM's form of the output: exactly one of the first five."""

    json_: Annotated[Schema | str | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Texts | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    whitespace_pattern: str | None = None

    def forms(self, prefix: str) -> Iterator[tuple[str, Grammar]]:
        """Each grammar that is given, with the name of its field, which begins with `prefix`."""
        schema = {"type": "object"} if self.json_object else self.json_
        if schema is not None:
            name = f"{prefix}{'json_object' if self.json_object else 'json'}"
            options: dict[str, Any] = {
                "compact": bool(self.disable_any_whitespace),
                "whitespace": self.whitespace_pattern,
            }
            yield name, structured.json_schema(schema, name, **options)
        if self.json_object and self.json_ is not None:
            yield f"{prefix}json", structured.json_schema(self.json_, f"{prefix}json")
        if self.regex is not None:
            yield f"{prefix}regex", structured.regex(self.regex, f"{prefix}regex")
        if self.choice is not None:
            yield f"{prefix}choice", structured.choice(self.choice, f"{prefix}choice")
        if self.grammar is not None:
            yield f"{prefix}grammar", structured.context_free(self.grammar, f"{prefix}grammar")


class StructuredBody(Body):
    """The fields of both kinds of completion that give the output a form."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | str | None = None
    guided_regex: str | None = None
    guided_choice: Texts | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None

    def form(self) -> tuple[str, Grammar] | None:
        """The grammar that the output must follow and the name of its field; None for any text.

        Raises:
            FieldInvalid: more than one is given, or none where there is a field for one.
        """
        guided = StructuredOutputs.model_construct(
            json_=self.guided_json,
            regex=self.guided_regex,
            choice=self.guided_choice,
            grammar=self.guided_grammar,
            whitespace_pattern=self.guided_whitespace_pattern,
        )
        own = list(self.structured_outputs.forms("structured_outputs.")) if self.structured_outputs else []
        if self.structured_outputs and len(own) != 1:
            raise FieldInvalid("structured_outputs takes exactly one form", "structured_outputs")
        openai = self.response_format.form() if self.response_format else None
        forms = [*([openai] if openai else []), *own, *guided.forms("guided_")]
        if len(forms) > 1:
            raise FieldInvalid(f"{forms[1][0]}: {forms[0][0]} gives the output another form; give one", forms[1][0])
        return forms[0] if forms else None
