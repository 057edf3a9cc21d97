"""Builds the consumer of tests/package with the package and runs it."""
import os

from conan import ConanFile
from conan.tools.build import can_run
from conan.tools.cmake import CMake, cmake_layout


class AttnTest(ConanFile):
    settings = "os", "arch", "compiler", "build_type"
    generators = "CMakeDeps", "CMakeToolchain"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self)

    def build(self):
        cmake = CMake(self)
        version = str(self.dependencies["attn"].ref.version)
        cmake.configure({"EXPECTED_VERSION": version},
                        build_script_folder=os.path.join("..", "..", "..", "tests", "package", "consumer"))
        cmake.build()

    def test(self):
        if can_run(self):
            for program in ("consumer", "consumer_c"):
                self.run(os.path.join(self.build_folder, program), env="conanrun")
