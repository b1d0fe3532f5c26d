"""make_venv.py FOLDER REQUIREMENTS: a virtual environment with the packages that the server's tests use, made once for
each content of the requirements."""
import hashlib
import os
import subprocess
import sys
import venv

folder, requirements = sys.argv[1:]
with open(requirements, "rb") as file:
    wanted = hashlib.sha256(file.read()).hexdigest()
stamp = os.path.join(folder, "requirements.sha256")
if not os.path.exists(stamp) or open(stamp).read() != wanted:
    venv.create(folder, clear=True, with_pip=True)
    subprocess.run([os.path.join(folder, "bin", "python"), "-m", "pip", "install", "--quiet",
                    "--disable-pip-version-check", "-r", requirements], check=True)
    with open(stamp, "w") as file:
        file.write(wanted)
