"""The variables of the environment with endpoints and credentials.

`VARIABLES` is the only table of such names. Drivers, errors and redaction (`nlu.config.redaction`) read it.
`_fetch.py` of the launcher for PAI cannot, since it runs before nlu is installed; a test compares the two.
"""

from collections.abc import Mapping
from dataclasses import dataclass

KEY, SECRET, TOKEN, ENDPOINT, PLACE = "key", "secret", "token", "endpoint", "place"
"""the purpose of a variable; the first three are secrets, the others are addresses or names"""


@dataclass(frozen=True)
class Variable:
    """One variable of the environment."""

    name: str
    service: str
    role: str

    @property
    def is_secret(self) -> bool:
        """Whether its value must never be shown."""
        return self.role in (KEY, SECRET, TOKEN)


_SERVICES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "s3": (
        ("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET), ("AWS_SESSION_TOKEN", TOKEN),
        ("AWS_ENDPOINT_URL", ENDPOINT), ("AWS_ENDPOINT_URL_S3", ENDPOINT), ("AWS_PROFILE", PLACE),
        ("AWS_DEFAULT_REGION", PLACE),
    ),
    "oss": (
        ("FSSPEC_OSS_KEY", KEY), ("FSSPEC_OSS_SECRET", SECRET), ("FSSPEC_OSS_TOKEN", TOKEN), ("OSS_ENDPOINT", ENDPOINT),
        ("OSS_ENDPOINTS", PLACE),
    ),
    "alibaba cloud": (
        ("ALIBABA_CLOUD_ACCESS_KEY_ID", KEY), ("ALIBABA_CLOUD_ACCESS_KEY_SECRET", SECRET),
        ("ALIBABA_CLOUD_SECURITY_TOKEN", TOKEN), ("ALIBABA_CLOUD_CREDENTIALS_URI", PLACE),
    ),
    "maxcompute": (("ODPS_ENDPOINT", ENDPOINT), ("ODPS_TUNNEL_ENDPOINT", PLACE)),
    "hugging face": (("HF_TOKEN", TOKEN), ("HUGGING_FACE_HUB_TOKEN", TOKEN), ("HF_ENDPOINT", ENDPOINT)),
    "github": (("GITHUB_TOKEN", TOKEN), ("GH_TOKEN", TOKEN)),
    "wandb": (("WANDB_API_KEY", SECRET), ("WANDB_BASE_URL", ENDPOINT)),
    "mlflow": (
        ("MLFLOW_TRACKING_PASSWORD", SECRET), ("MLFLOW_TRACKING_TOKEN", TOKEN), ("MLFLOW_TRACKING_URI", ENDPOINT),
        ("MLFLOW_TRACKING_USERNAME", PLACE),
    ),
    "postgresql": (
        ("PGPASSWORD", SECRET), ("PGPASSFILE", PLACE), ("PGSERVICEFILE", PLACE), ("PGHOST", ENDPOINT),
        ("PGUSER", PLACE),
    ),
    "nlu.serve": (("NLU_SERVE_TOKEN", TOKEN),),
}  # fmt: skip
VARIABLES = tuple(Variable(name, service, role) for service, own in _SERVICES.items() for name, role in own)
SECRET_NAMES = frozenset(variable.name.lower() for variable in VARIABLES if variable.is_secret)
"""in lower case"""
PREFIXES = ("AWS_", "OSS_", "FSSPEC_", "ALIBABA_CLOUD_")
"""of all variables that the drivers of object stores read"""


def name_of(service: str, role: str) -> str:
    """Return the first variable that a service reads for this role."""
    return next(variable.name for variable in VARIABLES if (variable.service, variable.role) == (service, role))
