"""How a store is reached: endpoint, region, credentials, timeouts.

Credentials are those of the environment, of a profile in the files of AWS, or of the machine; obstore reads the
variables itself.  Profiles that must be exchanged for keys (SSO, roles, programs) are left to botocore.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from confluo_tools.errors import UsageError
from confluo_tools.objects.address import ObjectAddress

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Backend

CONNECT, SILENCE, REQUEST = 5.0, 20.0, 120.0  # seconds: to connect, between two bytes, for one request
RETRIES, RETRY_TIME = 5, 30.0  # of one request; seconds
FIRST_WAIT, LONGEST_WAIT = 0.1, 3.0  # seconds between two tries; each wait is about double
OF_MACHINE = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
EXCHANGED = ("sso_session", "sso_start_url", "role_arn", "credential_process", "web_identity_token_file")


def backend(address: ObjectAddress) -> tuple[Backend, str]:
    """The store of obstore for a bucket, and its endpoint for messages.  Raises UsageError."""
    try:
        from obstore.store import HTTPStore, MemoryStore, S3Store, from_url
    except ImportError:
        raise UsageError("needs obstore", where=address.root, hint="pip install 'confluo-tools[s3]'") from None
    if address.scheme == "memory":
        return MemoryStore(), address.root
    retry: Any = {
        "max_retries": RETRIES,
        "retry_timeout": timedelta(seconds=RETRY_TIME),
        "backoff": {
            "init_backoff": timedelta(seconds=FIRST_WAIT),
            "max_backoff": timedelta(seconds=LONGEST_WAIT),
            "base": 2,
        },
    }
    client: Any = {
        "connect_timeout": timedelta(seconds=CONNECT),
        "read_timeout": timedelta(seconds=SILENCE),
        "timeout": timedelta(seconds=REQUEST),
    }
    try:
        if address.scheme in ("http", "https"):
            client["allow_http"] = address.scheme == "http"
            return HTTPStore(address.root, client_options=client, retry_config=retry), address.root
        if address.scheme != "s3":
            return from_url(address.root, client_options=client, retry_config=retry), address.root
        options, credentials = s3_settings(os.environ)
        endpoint = options.get("endpoint", "")
        client["allow_http"] = endpoint.startswith("http://")
        store = S3Store(
            address.bucket, client_options=client, retry_config=retry, credential_provider=credentials, **options
        )
        return store, endpoint or "Amazon S3"
    except UsageError:
        raise
    except Exception as e:  # of any class: obstore refuses settings by several
        raise UsageError(str(e).partition("\n")[0], where=address.root) from None


def s3_settings(env: Mapping[str, str]) -> tuple[dict[str, Any], Callable[[], Any] | None]:
    """Options of S3Store that its own look at the environment does not find, and who gives the keys if not those.

    Raises UsageError for a profile that does not exist or cannot be used.
    """
    name = env.get("AWS_PROFILE") or env.get("AWS_DEFAULT_PROFILE") or ""
    profile = _profile(env, name or "default")
    if name and profile is None:
        raise UsageError("there is no such profile", where=f"AWS_PROFILE={name}", hint="see ~/.aws/config")
    profile = profile or {}
    out: dict[str, Any] = {}
    endpoint = env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL") or profile.get("endpoint_url", "")
    if endpoint:
        out["endpoint"] = endpoint
    region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or profile.get("region", "")
    if region:
        out["region"] = region
    if env.get("AWS_ACCESS_KEY_ID") or env.get("AWS_SKIP_SIGNATURE"):
        return out, None
    if profile.get("aws_access_key_id") and not profile.get("role_arn"):
        out["access_key_id"] = profile["aws_access_key_id"]
        out["secret_access_key"] = profile.get("aws_secret_access_key", "")
        if profile.get("aws_session_token"):
            out["session_token"] = profile["aws_session_token"]
        return out, None
    if any(profile.get(key) for key in EXCHANGED):
        return out, _exchanged(name)
    if env.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true" and not any(env.get(key) for key in OF_MACHINE):
        hint = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        raise UsageError("there are no credentials for S3", hint=hint)
    return out, None


def _profile(env: Mapping[str, str], name: str) -> dict[str, str] | None:
    # Its settings in both files; those of the file of credentials win.
    home = os.path.expanduser("~")
    config = env.get("AWS_CONFIG_FILE") or os.path.join(home, ".aws", "config")
    keys = env.get("AWS_SHARED_CREDENTIALS_FILE") or os.path.join(home, ".aws", "credentials")
    found: dict[str, str] | None = None
    for path, section in ((config, "default" if name == "default" else f"profile {name}"), (keys, name)):
        parser = configparser.RawConfigParser(default_section="", strict=False)
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):  # its text may be a key: it is not repeated
            raise UsageError("is not a file of profiles", where=path) from None
        if parser.has_section(section):
            found = (found or {}) | dict(parser.items(section))
    return found


def _exchanged(name: str) -> Callable[[], Any]:
    try:
        from botocore.session import Session
    except ImportError:
        what = "its keys come from SSO, a role or a program, which needs botocore"
        raise UsageError(what, where=f"AWS_PROFILE={name or 'default'}", hint="pip install botocore") from None
    session = Session(profile=name or None)

    def keys() -> Any:
        found = session.get_credentials()
        if found is None:
            raise ValueError("no credentials")
        frozen = found.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": None,
        }

    return keys
