"""The settings of an audit: one schema for files, the command line, `exhume init` and the docs."""

from exhume.settings.brief import RELEASES, Brief
from exhume.settings.releases import (
    DEFENCES,
    CheckpointSettings,
    FittedSettings,
    ReleaseSettings,
    SplitSettings,
    UpdateSettings,
)
from exhume.settings.schema import (
    Setting,
    SettingsSection,
    SharedNumber,
    SharedText,
    filled,
    made_of,
    setting,
    settings_of,
    toml_at,
    toml_of,
    toml_value,
    types_of,
)
from exhume.settings.sections import (
    AttackSettings,
    BudgetSettings,
    DataSettings,
    MachineSettings,
    Settings,
    VictimSettings,
)

__all__ = [
    "DEFENCES",
    "RELEASES",
    "AttackSettings",
    "Brief",
    "BudgetSettings",
    "CheckpointSettings",
    "DataSettings",
    "FittedSettings",
    "MachineSettings",
    "ReleaseSettings",
    "Setting",
    "Settings",
    "SettingsSection",
    "SharedNumber",
    "SharedText",
    "SplitSettings",
    "UpdateSettings",
    "VictimSettings",
    "filled",
    "made_of",
    "setting",
    "settings_of",
    "toml_at",
    "toml_of",
    "toml_value",
    "types_of",
]
