"""Ten products of matrices, fed to the Master: the program that sge-template's document describes."""

import logging
import os
import sys

import numpy as np
from sge.jobs import Job
from sge.master import Master

BASE = "./sge/comms/"
HOT_START = False  # whether agents are there already


def product(number):
    return Job(name=f"job_{number}", data={"matrix_a": np.full((3, 4), float(number)), "matrix_b": np.ones((4, 3))})


if __name__ == "__main__":
    if not HOT_START:
        os.system(f"./start_agents.sh 2 {BASE}")
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    np.savez(BASE + "data/shared.npz", matrix_c=np.eye(4))
    master = Master(BASE, shared_data_path=BASE + "data/shared.npz", logger=logging.getLogger("sge"))
    master.run([product(number) for number in range(10)])
