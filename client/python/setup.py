"""Generates latchd/v1/*_pb2*.py from ../../proto before the package is built."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
PROTO = HERE.parents[1] / "proto"


class BuildPy(build_py):
    def run(self) -> None:
        from grpc_tools import protoc

        files = sorted(str(f) for f in (PROTO / "latchd" / "v1").glob("*.proto"))
        code = protoc.main(
            ["protoc", f"-I{PROTO}", f"--python_out={HERE}", f"--pyi_out={HERE}", f"--grpc_python_out={HERE}", *files]
        )
        if code != 0:
            raise SystemExit(f"protoc ended with {code}")
        super().run()


(HERE / "latchd" / "v1").mkdir(exist_ok=True)
(HERE / "latchd" / "v1" / "__init__.py").touch()
setup(cmdclass={"build_py": BuildPy})
