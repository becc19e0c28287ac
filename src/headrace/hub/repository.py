"""Fetches models from a hub's repositories through huggingface_hub: resumable, cached, and only the files needed.

The library reads HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE itself, and its cache is shared with other programs
that use it. Only safetensors and GGUF files are accepted: a pickle can run code when it is loaded.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from headrace.errors import ModelNotFound
from headrace.hub.fetching import Progress
from headrace.hub.model_reference import Repository

__all__ = ["cached_repository", "fetch_repository"]

_log = logging.getLogger(__name__)
_SETTINGS = frozenset(
    "config.json generation_config.json tokenizer.json tokenizer_config.json special_tokens_map.json "
    "chat_template.jinja chat_template.json hf_quant_config.json quantization_config.json".split()
)
_INDEX = "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_SHOWN = 8
"""Files that an error lists at most."""


def fetch_repository(wanted: Repository, progress: Progress, endpoint: str | None = None) -> Path:
    """The directory of the model, or its GGUF file; fetched unless it is in the cache. `endpoint`: default HF_ENDPOINT.

    `progress(what, done, total)` counts bytes. Without a connection the cached copy is used, and a log line reports it.
    Raises ModelNotFound that names the cause: the repository, the revision or the file is missing, or access is denied.
    """
    # Late: the import takes long, and only fetching needs it.
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    unreachable: tuple[type[BaseException], ...] = (
        OfflineModeIsEnabled,
        LocalEntryNotFoundError,
        *_transport_errors(),
    )
    try:
        try:
            return _fetch(wanted, progress, endpoint)
        except unreachable as error:
            found = cached_repository(wanted)
            if found is None:
                raise
            _log.warning("%s: the hub cannot be reached (%s); the cached copy is used", wanted.id, _first_line(error))
            return found
    except HfHubHTTPError as error:
        raise ModelNotFound(_explain(wanted, error)) from error
    except unreachable as error:
        why = "HF_HUB_OFFLINE is set" if isinstance(error, OfflineModeIsEnabled) else _first_line(error)
        raise ModelNotFound(f"{wanted.id} is not in the cache, and the hub cannot be reached: {why}") from error


def _fetch(wanted: Repository, progress: Progress, endpoint: str | None) -> Path:
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download

    found = HfApi(endpoint=endpoint).model_info(wanted.id, revision=wanted.revision)
    names = {sibling.rfilename for sibling in found.siblings or ()}
    common: dict[str, Any] = {"repo_id": wanted.id, "revision": found.sha, "endpoint": endpoint}
    file = _gguf_file(wanted, names)
    if file is not None:
        path = Path(hf_hub_download(filename=file, tqdm_class=_reporter(file, progress), **common))
        _store_revision(wanted, path.parents[file.count("/")])
        return path
    chosen = {*_SETTINGS & names}
    if _INDEX in names:
        index = Path(hf_hub_download(filename=_INDEX, tqdm_class=_reporter(_INDEX, progress), **common))
        chosen |= {_INDEX, *_shards(wanted, index)}
    else:
        chosen |= _weight_files(wanted, names)
    bars = _reporter(wanted.id, progress)
    folder = Path(snapshot_download(allow_patterns=sorted(chosen), tqdm_class=bars, **common))
    _store_revision(wanted, folder)
    return folder


def _gguf_file(wanted: Repository, names: Collection[str]) -> str | None:
    """The GGUF file to fetch, or None for a directory of safetensors. Raises ModelNotFound if there is not exactly
    one."""
    files = sorted(name for name in names if name.endswith(".gguf"))
    if wanted.file is not None:
        if wanted.file not in names:
            raise ModelNotFound(f"{wanted.id} has no file {wanted.file!r}; {_listed(files)}")
        return wanted.file
    if "config.json" in names and any(name.endswith(".safetensors") for name in names):
        return None
    if len(files) == 1:
        return files[0]
    if files:
        raise ModelNotFound(
            f"{wanted.id} has {len(files)} GGUF files: name one, as {wanted.id}:{files[0]}; {_listed(files)}"
        )
    if "config.json" in names and any(name.endswith(_PICKLES) for name in names):
        raise ModelNotFound(
            f"{wanted.id} has its weights as pickles only, which can run code when they are loaded: choose a "
            "repository with safetensors or GGUF files"
        )
    raise ModelNotFound(
        f"{wanted.id} has neither a config.json with safetensors nor a GGUF file; {_listed(sorted(names))}"
    )


def _listed(files: list[str]) -> str:
    more = f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
    return f"there is {', '.join(files[:_SHOWN])}{more}" if files else "it has none"


def _shards(wanted: Repository, index: Path) -> set[str]:
    try:
        files = {str(name) for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelNotFound(f"{wanted.id}: {_INDEX} holds no weight_map ({type(error).__name__})") from error
    return {name for name in files if name.endswith(".safetensors") and "/" not in name}


def _weight_files(wanted: Repository, names: Collection[str]) -> set[str]:
    """The weight files beside the config. Files `consolidated*` hold the same weights in another layout."""
    files = {name for name in names if name.endswith(".safetensors") and "/" not in name}
    chosen = {name for name in files if not name.startswith("consolidated")} or files
    if not chosen:
        raise ModelNotFound(f"{wanted.id} has no safetensors beside its config.json")
    return chosen


def _store_revision(wanted: Repository, folder: Path) -> None:
    """Store the commit of a branch, so that `folder` is found without a connection; a download by commit doesn't store
    it."""
    if wanted.revision == folder.name:
        return
    reference = folder.parent.parent / "refs" / (wanted.revision or "main")
    reference.parent.mkdir(parents=True, exist_ok=True)
    reference.write_text(folder.name)


def cached_repository(wanted: Repository) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    name = wanted.file or "config.json"
    found = try_to_load_from_cache(wanted.id, name, revision=wanted.revision)
    if not isinstance(found, str):
        return None
    return Path(found) if wanted.file else Path(found).parent


def _transport_errors() -> Iterator[type[BaseException]]:
    """The transport errors of huggingface_hub's HTTP library, which differs between its versions."""
    for name in ("httpx", "httpx2"):
        with contextlib.suppress(ImportError):
            yield importlib.import_module(name).TransportError


def _explain(wanted: Repository, error: Exception) -> str:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return f"{wanted.id} is gated: accept its terms on the hub, then set HF_TOKEN to a token of that account"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"the hub has no repository {wanted.id}, or it is private: check the name, or set HF_TOKEN"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{wanted.id} has no revision {wanted.revision!r}"
    return f"{wanted.id}: the hub answers {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _reporter(what: str, progress: Progress) -> type[Any]:
    """A replacement for tqdm's class that reports bytes to `progress` and draws nothing."""
    from tqdm import tqdm

    class Reporter(tqdm):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **more: Any) -> None:
            self._bytes = more.get("unit") == "B"
            more.pop("name", None)
            super().__init__(*arguments, **{**more, "disable": True})
            self.n, self.total = more.get("initial", 0), more.get("total")

        def update(self, n: float | None = 1) -> bool | None:
            self.n += n or 0
            if self._bytes:
                progress(what, int(self.n), int(self.total or 0))
            return None

    return Reporter
