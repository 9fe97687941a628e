"""The HTTP surface: addresses, bodies, statuses, and the OpenAPI document that describes them.

Handlers only read bytes and hand them to a worker thread, where they are parsed, answered (`metavib.serve.service`) and
written as JSON: the event loop, which all requests share, does no work of its own.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import APIRouter, FastAPI, Header, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import FormParser, parse_options_header
from starlette.exceptions import HTTPException

from metavib.serve import describe, page, schemas
from metavib.serve.combine import Busy
from metavib.serve.describe import FILE, FORM, JSON
from metavib.serve.engine import Data
from metavib.serve.guard import App, Guard, Stop, unforeseen
from metavib.serve.service import Answer, Call, Service
from metavib.serve.store import Damaged, Full, Refused, Unreachable

Kind = TypeVar("Kind", bound=BaseModel)
FORESEEN = (Stop, Refused, Damaged, Full, Unreachable, Busy, ValidationError, RequestValidationError, HTTPException)

TaskName = Annotated[schemas.Name, Path(description="The task's name.")]
IdempotencyKey = Annotated[
    schemas.Key | None,
    Header(
        alias="Idempotency-Key",
        description="Names this request: when it comes again with the same key it gets the same answer, and counts "
        "once. Use a new random string for each request.",
    ),
]
IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        max_length=200,
        description="The ETag that the task must have, or `*` if it must only exist; else nothing is done (412).",
    ),
]


def application(service: Service, *, token: str | None = None, threads: int = 32) -> App:
    """The whole server, as an ASGI application.

    Args:
        service: what it serves; its store is closed with the server.
        token: what clients must show; without one, only this machine's own addresses are answered to.
        threads: that answer requests.
    """
    workers = ThreadPoolExecutor(threads, thread_name_prefix="metavib")

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        workers.shutdown(wait=True)  # what was begun is finished
        service.store.close()

    api = FastAPI(lifespan=life, docs_url=None, redoc_url=None, openapi_url=None)
    api.state.service, api.state.workers = service, workers
    api.router.routes.extend((*tasks.routes, *rest.routes))  # at once: an included router is matched a second time
    for kind in FORESEEN:
        api.add_exception_handler(kind, _problem)
    api.add_exception_handler(Exception, _unforeseen)  # which is then raised again, for the guard to log
    api.state.document = json.dumps(describe.document(api.routes, service.engines)).encode()
    return Guard(api, service.limits, service.metrics, token=token)


# Tasks

tasks = APIRouter(prefix="/v1")


@tasks.get("/models", response_model=schemas.Models)
async def models(request: Request) -> Response:
    """The models of this server, and what each takes."""
    return await _answer(request, lambda service: {"models": service.models()})


@tasks.post("/tasks", response_model=schemas.Task, status_code=201, openapi_extra=describe.takes(schemas.Make))
async def make(request: Request, key: IdempotencyKey = None) -> Response:
    """Make a task, from a few points or from none."""
    body = await _receive(request)

    def verb(service: Service) -> Answer:
        wanted = body.json(schemas.Make)
        data = None if wanted.points is None else wanted.points.data()
        return service.make(wanted.model, wanted.name, data, wanted.classes, key=key)

    return await _answer(request, verb, status=201)


@tasks.get("/tasks", response_model=schemas.Tasks)
async def list_tasks(
    request: Request,
    model: Annotated[str | None, Query(max_length=200, description="Tasks of this model alone.")] = None,
    after: Annotated[str, Query(max_length=128, description="Begin after the task of this name.")] = "",
    limit: Annotated[int, Query(ge=1, le=1000, description="Tasks a page.")] = 100,
) -> Response:
    """List tasks in the order of their names."""

    def verb(service: Service) -> Answer:
        found = service.tasks(after=_storable(after), limit=limit, model=model)
        return {"tasks": list(map(_public, found)), "next": found[-1]["task"] if len(found) == limit else None}

    return await _answer(request, verb)


@tasks.get("/tasks/{task}", response_model=schemas.Task)
async def show(request: Request, task: TaskName) -> Response:
    """One task: its version, how many points it has learned from, and its classes."""
    return await _answer(request, lambda service: service.task(task))


@tasks.delete("/tasks/{task}", status_code=204)
async def delete(request: Request, task: TaskName, if_match: IfMatch = None) -> Response:
    """Delete a task and all that is known of it."""
    await _work(request, lambda service: service.delete(task, expected=if_match))
    return Response(status_code=204)


@tasks.post(
    "/tasks/{task}/update", response_model=schemas.Task, openapi_extra=describe.takes(schemas.Update, labelled=True)
)
async def update(request: Request, task: TaskName, key: IdempotencyKey = None, if_match: IfMatch = None) -> Response:
    """Add points to what is known of a task; they may be of new classes."""
    body = await _receive(request)
    return await _answer(
        request, lambda service: service.update(task, body.points(schemas.Update), key=key, expected=if_match)
    )


@tasks.post(
    "/tasks/{task}/forget", response_model=schemas.Task, openapi_extra=describe.takes(schemas.Forget, labelled=True)
)
async def forget(request: Request, task: TaskName, key: IdempotencyKey = None, if_match: IfMatch = None) -> Response:
    """Take points away again, as if they had never been learned."""
    body = await _receive(request)
    return await _answer(
        request, lambda service: service.forget(task, body.points(schemas.Forget), key=key, expected=if_match)
    )


@tasks.post("/tasks/{task}/merge", response_model=schemas.Task, openapi_extra=describe.takes(schemas.Merge))
async def merge(request: Request, task: TaskName, key: IdempotencyKey = None, if_match: IfMatch = None) -> Response:
    """Add what is known of another task, which stays as it is; no point may be in both."""
    body = await _receive(request)
    return await _answer(
        request, lambda service: service.merge(task, body.json(schemas.Merge).other, key=key, expected=if_match)
    )


@tasks.post(
    "/tasks/{task}/predict",
    response_model=schemas.Predictions,
    openapi_extra=describe.takes(schemas.Predict, pictures=True),
)
async def predict(request: Request, task: TaskName, if_match: IfMatch = None) -> Response:
    """Predict: mean, standard deviation and interval of real outputs, or the probabilities of classes."""
    body = await _receive(request)

    def verb(service: Service) -> Answer:
        data, level = body.inputs()
        return service.predict(task, data, level=level, expected=if_match)

    return await _answer(request, verb)


@tasks.get("/tasks/{task}/file", response_class=Response, responses={200: {"content": {FILE: {}}}})
async def export(request: Request, task: TaskName) -> Response:
    """Export a task as a task file (safetensors), which `metavib predict` and `Learner.load` read too."""
    content, tag = await _work(request, lambda service: service.export(task))
    disposition = 'attachment; filename="task.safetensors"'
    return Response(content, media_type=FILE, headers={"etag": tag, "content-disposition": disposition})


@tasks.put("/tasks/{task}/file", response_model=schemas.Task, openapi_extra=describe.takes_file())
async def replace(request: Request, task: TaskName, key: IdempotencyKey = None, if_match: IfMatch = None) -> Response:
    """Import a task file. A task that is there already is replaced only where If-Match says so."""
    body = await _receive(request, FILE)
    return await _answer(request, lambda service: service.replace(task, body.content, key=key, expected=if_match))


@tasks.post("/batch", response_model=schemas.Answers, openapi_extra=describe.takes(schemas.Batch))
async def batch(request: Request) -> Response:
    """Make many calls at once: changes first, in their order, and then predictions. Each has an answer of its own."""
    body = await _receive(request)

    def verb(service: Service) -> Answer:
        wanted = body.json(schemas.Batch)
        if len(wanted.calls) > service.limits.calls:
            raise Refused(f"a batch may have {service.limits.calls} calls here; got {len(wanted.calls)}.", 413)
        answers = service.batch([_call(call) for call in wanted.calls])
        return {"answers": [_failed(a) if isinstance(a, Exception) else _public(a) for a in answers]}

    return await _answer(request, verb)


def _call(call: Any) -> Call:
    if isinstance(call, schemas.MakeCall):
        data = None if call.points is None else call.points.data()
        return Call("make", call.name, {"model": call.model, "data": data, "classes": call.classes, "key": call.key})
    if isinstance(call, schemas.MergeCall):
        return Call("merge", call.task, {"other": call.other, "key": call.key})
    if isinstance(call, schemas.PredictCall):
        return Call("predict", call.task, {"data": call.inputs.data(), "level": call.level})
    return Call(call.verb, call.task, {"data": call.points.data(), "key": call.key})


# The rest

rest = APIRouter(include_in_schema=False)


@rest.get("/healthz")
async def healthy(request: Request) -> Response:
    """Whether the server and its store answer."""
    await _work(request, lambda service: service.store.check())
    return Response('{"status": "ok"}', media_type=JSON)


@rest.get("/metrics")
async def metrics(request: Request) -> Response:
    """What is counted, for Prometheus."""
    text = await _work(request, lambda service: service.metrics.text())
    return Response(text, media_type="text/plain; version=0.0.4")


@rest.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """The document that describes all of this."""
    return Response(request.app.state.document, media_type=JSON)


@rest.get("/")
@rest.get("/docs")
@rest.get("/page/{name}")
async def static(request: Request, name: str = "") -> Response:
    """The page and its parts: files that were read when the server began, and nothing else."""
    name = name or {"/": "index.html", "/docs": "docs.html"}[request.url.path]
    file = page.files().get(name)
    if file is None:
        raise HTTPException(404)
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers={"etag": file.tag})
    return Response(file.content, media_type=file.type, headers={"etag": file.tag, "cache-control": "no-cache"})


# Between the two


class _Received(NamedTuple):
    """The body of a request, to be parsed by a worker."""

    content: bytes
    media: str
    most: int

    def json(self, kind: type[Kind]) -> Kind:
        if self.media.startswith(FORM):
            raise Refused("this address takes JSON.", 415)
        return kind.model_validate_json(self.content)

    def points(self, kind: type[schemas.Update] | type[schemas.Forget]) -> Data:
        if not self.media.startswith(FORM):
            return self.json(kind).points.data()
        files = self._files()
        return Data("pictures", [content for _, content in files], [label for label, _ in files])

    def inputs(self) -> tuple[Data, float]:
        if self.media.startswith(FORM):
            return Data("pictures", [content for _, content in self._files()]), 0.95
        wanted = self.json(schemas.Predict)
        return wanted.inputs.data(), wanted.level

    def _files(self) -> list[tuple[str, bytes]]:
        """The files of a form, each with the name of its field: the label of the picture."""
        found: list[tuple[str, bytes]] = []

        def on_file(file: Any) -> None:
            if len(found) >= self.most:
                raise Refused(f"a call may have {self.most} pictures here.", 413)
            file.file_object.seek(0)
            label = file.field_name.decode("utf-8")
            if not 0 < len(label) <= 200:
                raise Refused("a field's name is the class of its picture, of 1 to 200 characters.", 422)
            found.append((label, file.file_object.read()))

        def on_field(field: Any) -> None:
            raise Refused("every field of the form must be a picture file, named by its class.", 422)

        _, options = parse_options_header(self.media)
        boundary = options.get(b"boundary")
        if not boundary:
            raise Refused("the form has no boundary in its Content-Type.", 422)
        config = {"MAX_MEMORY_FILE_SIZE": len(self.content) + 1}
        parser = FormParser(FORM, on_field, on_file, boundary=boundary, config=config)
        try:
            parser.write(self.content)
            parser.finalize()
        except (FormParserError, UnicodeDecodeError) as error:
            raise Refused("the form could not be read: it is cut short, or damaged.", 422) from error
        if not found:
            raise Refused("the form holds no picture files.", 422)
        return found


async def _receive(request: Request, *types: str) -> _Received:
    kind = request.headers.get("content-type", "").strip()
    plain = kind.partition(";")[0].strip().lower()
    if plain not in (types or (JSON, FORM)):
        raise Refused(f"the body must be {' or '.join(types or (JSON, FORM))}, and Content-Type must say so.", 415)
    return _Received(await request.body(), kind, request.app.state.service.limits.points)


async def _work(request: Request, verb: Callable[[Service], Any]) -> Any:
    state = request.app.state
    return await asyncio.get_running_loop().run_in_executor(state.workers, verb, state.service)


async def _answer(request: Request, verb: Callable[[Service], Answer], *, status: int = 200) -> Response:
    def written(service: Service) -> Response:
        answer = verb(service)
        headers = {"etag": answer["tag"]} if "tag" in answer else {}
        return Response(_json(_public(answer)), status, headers, JSON)

    response: Response = await _work(request, written)
    return response


def _public(answer: Answer) -> Answer:
    return {name: value for name, value in answer.items() if name != "tag"}


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _storable(text: str) -> str:
    """A name as databases take it: what no task can be called is after nothing."""
    return text.replace("\x00", "").encode("utf-8", "ignore").decode()


async def _unforeseen(request: Request, _: Exception) -> Response:
    return Response(_json({"error": unforeseen(request.scope["metavib"])}), 500, media_type=JSON)


async def _problem(_: Request, error: Exception) -> Response:
    failed = _failed(error)
    headers = {"retry-after": "1"} if failed["status"] == 503 else {}
    return Response(_json({"error": failed["error"]}), failed["status"], headers, JSON)


def _failed(error: Exception) -> Answer:
    """Status and sentence of an error that was foreseen; any other is raised again, for the log."""
    if isinstance(error, Refused | Stop):
        return {"error": str(error), "status": error.status}
    if isinstance(error, Unreachable | Busy):
        return {"error": str(error), "status": 503}
    if isinstance(error, Full):
        return {"error": str(error), "status": 507}
    if isinstance(error, Damaged):
        return {"error": str(error), "status": 500}
    if isinstance(error, ValidationError | RequestValidationError):
        problems = list(error.errors())
        status = 400 if any(p["type"] == "json_invalid" for p in problems) else 422
        return {"error": "; ".join(map(_sentence, problems[:3])) + ".", "status": status}
    if isinstance(error, HTTPException):
        reason = {404: "there is nothing at this address; /docs lists what there is", 405: "not in this way"}
        return {"error": reason.get(error.status_code, str(error.detail)) + ".", "status": error.status_code}
    raise error


def _sentence(problem: Any) -> str:
    """What pydantic found, without what it found there."""
    parts = [str(part) for part in problem["loc"] if part not in ("body", "path", "query", "header")]
    message = problem["msg"].removeprefix("Value error, ")
    return f"{'.'.join(parts)}: {message}" if parts else message
