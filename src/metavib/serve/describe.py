"""The OpenAPI document: what FastAPI knows of the addresses, the bodies, and examples that work as pasted.

Examples are made of the models that are served, so that they are right on the very server that shows them. Pasted in
this order they tell a story: two tasks are made, one learns on, predicts, forgets, and takes in the other.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from metavib.serve import schemas
from metavib.serve.engine import Engine

JSON, FORM, FILE = "application/json", "multipart/form-data", "application/octet-stream"
BODIES = (schemas.Make, schemas.Update, schemas.Forget, schemas.Merge, schemas.Predict, schemas.Batch)
REFERENCE = "#/components/schemas/{model}"

ABOUT = """A trained model is one small network; a task is a few kilobytes that learn on. This service keeps tasks:
make one from a few points, add points as they come, ask for predictions with their uncertainty, take points away again.

Every answer about a task has its version as an ETag. A change that is sent with an `Idempotency-Key` may be repeated
until an answer comes, and counts once."""


def takes(body: type[BaseModel], *, labelled: bool = False, pictures: bool = False) -> dict[str, Any]:
    """The body of an address: JSON, and a form of picture files where that is allowed."""
    content: dict[str, Any] = {JSON: {"schema": {"$ref": REFERENCE.format(model=body.__name__)}}}
    if labelled or pictures:
        what = "Picture files; the name of each field is the class of its picture." if labelled else "Picture files."
        files = {"type": "object", "additionalProperties": {"type": "string", "format": "binary"}, "minProperties": 1}
        content[FORM] = {"schema": {**files, "description": what}}
    return {"requestBody": {"required": True, "content": content}}


def takes_file() -> dict[str, Any]:
    """The body of an address that takes a task file."""
    return {"requestBody": {"required": True, "content": {FILE: {"schema": {"type": "string", "format": "binary"}}}}}


def document(routes: Sequence[Any], engines: Mapping[str, Engine]) -> dict[str, Any]:
    """The whole document.

    Args:
        routes: of the application.
        engines: the models that are served, by name.
    """
    found = get_openapi(title="metavib", version="1", description=ABOUT, routes=routes)
    _, definitions = models_json_schema([(body, "validation") for body in BODIES], ref_template=REFERENCE)
    components = found.setdefault("components", {})
    components.setdefault("schemas", {}).update(definitions["$defs"])
    components["schemas"].setdefault("Problem", schemas.Problem.model_json_schema())
    for name in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(name, None)
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    found["security"] = [{}, {"token": []}]
    problem = {JSON: {"schema": {"$ref": REFERENCE.format(model="Problem")}}}
    for methods in found["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)
            operation["responses"]["4XX"] = {"description": "Refused; a sentence says why.", "content": problem}
            operation["responses"]["5XX"] = {"description": "Not possible for now.", "content": problem}
    _add_examples(found["paths"], engines)
    return found


def _add_examples(paths: dict[str, Any], engines: Mapping[str, Engine]) -> None:
    for address, methods in paths.items():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] == "task":
                    parameter["examples"] = {name: {"value": _task(name)} for name in engines}
            body = operation.get("requestBody", {}).get("content", {}).get(JSON)
            if body is not None:
                body["examples"] = {
                    name: {"value": value}
                    for engine in engines.values()
                    for name, value in _bodies(address, engine).items()
                }


def _task(model: str, second: bool = False) -> str:
    return f"example-{model}" + "-2" * second


def _bodies(address: str, engine: Engine) -> dict[str, Any]:
    """Example bodies of one address, for one model, by name."""
    first, later, inputs = engine.examples()
    name, task, other = engine.name, _task(engine.name), _task(engine.name, second=True)
    if address == "/v1/tasks":
        return {
            name: {"model": name, "name": task, "points": first},
            f"{name}-2": {"model": name, "name": other, "points": later},
        }
    if address == "/v1/batch":
        update = {"verb": "update", "task": task, "points": later}
        return {name: {"calls": [update, {"verb": "predict", "task": task, "inputs": inputs}]}}
    body = {"update": {"points": later}, "forget": {"points": later}, "merge": {"other": other}}
    return {name: (body | {"predict": {"inputs": inputs}})[address.rpartition("/")[2]]}
