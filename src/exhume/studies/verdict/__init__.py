"""Whether the verdict can be trusted."""
