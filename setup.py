"""The packages of the wheel, found in their three folders; all else stands in setup.cfg."""

from setuptools import find_namespace_packages, find_packages, setup

setup(
    packages=[
        *find_packages(include=["nlu", "nlu.*"]),
        "nlu.conf",
        *find_namespace_packages("launchers", include=["hydra_plugins.*"]),
    ],
    package_dir={"nlu.conf": "conf", "hydra_plugins": "launchers/hydra_plugins"},
)
