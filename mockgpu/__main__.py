"""``python -m mockgpu``."""

from mockgpu.cli import main

if __name__ == "__main__":
    main()
