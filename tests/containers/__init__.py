"""The image and the compose stack on a real container engine: `.ci/containers` prepares one and runs these."""
