"""Uploading a finished model folder to the Hugging Face hub, for ``--push-to-hub``."""

from __future__ import annotations

from pathlib import Path

from dupmae_ir.console import one_line, say
from dupmae_ir.errors import EnvironmentProblem, UsageError


def push(folder: str | Path, name: str | None, quiet: bool = False) -> None:
    """Upload the files of ``folder`` to the model repository ``name``, which is created as a private one if need be.

    Does nothing without a name. The token is huggingface_hub's own (``hf auth login``, or HF_TOKEN). Raises
    :class:`UsageError` for an invalid name or a missing right, and :class:`EnvironmentProblem` without a network; the
    folder is complete in both cases, and the same command uploads it again.
    """
    if not name:
        return
    # Imported here because it takes a third of a second, and only this needs it.
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled

    done = f"{folder} is complete; run the same command to push again"
    try:
        api = HfApi()
        address = api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="dupmae-ir: the trained model")
    except HFValidationError as e:
        raise UsageError(f"--push-to-hub {name}: not a name of a repository ({one_line(e, 150)}); {done}") from None
    except LocalTokenNotFoundError:
        raise UsageError(f"--push-to-hub {name}: no token; log in with hf auth login or set HF_TOKEN; {done}") from None
    except HfHubHTTPError as e:
        if e.response is not None and e.response.status_code in (401, 403):
            raise UsageError(
                f"--push-to-hub {name}: the hub refused the token; log in with hf auth login or set HF_TOKEN to one "
                f"that may write; {done}"
            ) from None
        raise EnvironmentProblem(f"--push-to-hub {name}: the hub answered {one_line(e, 150)}; {done}") from None
    except (OfflineModeIsEnabled, OSError) as e:
        raise _no_network(name, e, done) from None
    except Exception as e:
        if not type(e).__module__.startswith(("httpx", "requests", "urllib3")):
            raise
        raise _no_network(name, e, done) from None
    say(f"pushed to {address}", quiet)


def _no_network(name: str, error: Exception, done: str) -> EnvironmentProblem:
    return EnvironmentProblem(f"--push-to-hub {name}: no connection to the hub ({one_line(error, 150)}); {done}")
