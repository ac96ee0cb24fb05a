"""Made-up cgroup trees and process directories on disk, as the kernel lays them out."""

from __future__ import annotations

from pathlib import Path

MEMORY_STAT_V1 = "\n".join(
    f"{name} {value}"
    for name, value in {
        **dict.fromkeys(("cache", "rss", "rss_huge", "shmem", "mapped_file", "dirty", "writeback"), 4096),
        **dict.fromkeys(("workingset_refault_anon", "workingset_refault_file", "swap", "swapcached"), 0),
        "pgpgin": 700,
        "pgpgout": 500,
        "pgfault": 1101,
        "pgmajfault": 3,
        "inactive_anon": 0,
        "active_anon": 57344,
        "inactive_file": 8192,
        "active_file": 0,
        "unevictable": 0,
        "hierarchical_memory_limit": 67108864,
        "hierarchical_memsw_limit": 9223372036854771712,
        "total_cache": 106496,
        "total_rss": 57344,
        "total_rss_huge": 0,
        "total_shmem": 0,
        "total_mapped_file": 12288,
        "total_swap": 20480,
        "total_pgfault": 1101,
        "total_inactive_anon": 0,
        "total_active_anon": 57344,
        "total_inactive_file": 100000,
        "total_active_file": 6496,
        "total_unevictable": 0,
    }.items()
)

V1_FILES = {
    "cpu": {
        "cgroup.procs": "{pid}\n",
        "cpu.stat": "nr_periods 239\nnr_throttled 238\nthrottled_time 20942055880\n"
        "nr_bursts 1\nburst_time 5\n",
        "cpu.shares": "102\n",
        "cpu.cfs_period_us": "100000\n",
        "cpu.cfs_quota_us": "10000\n",
    },
    "cpuacct": {"cpuacct.usage": "{cpu}\n", "cpuacct.stat": "user 237\nsystem 1\n"},
    "memory": {
        "memory.usage_in_bytes": "{memory}\n",
        "memory.stat": MEMORY_STAT_V1 + "\n",
        "memory.limit_in_bytes": "67108864\n",
        "memory.memsw.limit_in_bytes": "9223372036854771712\n",
        "memory.max_usage_in_bytes": "999424\n",
        "memory.failcnt": "7\n",
        "memory.kmem.usage_in_bytes": "40960\n",
        "memory.soft_limit_in_bytes": "9223372036854771712\n",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        "cgroup.clone_children": "0\n",
    },
    "pids": {"pids.current": "2\n", "pids.max": "max\n"},
    "blkio": {
        "blkio.throttle.io_service_bytes_recursive": "254:0 Read 8192\n254:0 Write 4096\n254:0 Total 12288\n",
        "blkio.throttle.io_serviced_recursive": "254:0 Read 2\n254:0 Write 1\n254:0 Total 3\n",
    },
}

V2_FILES = {
    "cgroup.procs": "{pid}\n",
    "cgroup.events": "populated 1\nfrozen 0\n",
    "cpu.stat": "usage_usec {cpu_us}\nuser_usec 1500\nsystem_usec 500\nnr_periods 10\nnr_throttled 3\n"
    "throttled_usec 250000\nnr_bursts 0\nburst_usec 0\n",
    "cpu.weight": "4\n",
    "cpu.max": "10000 100000\n",
    "cpu.pressure": "some avg10=1.50 avg60=0.00 avg300=0.25 total=800\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=300\n",
    "memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=11\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=10\n",
    "io.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=21\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=20\n",
    "memory.current": "{memory}\n",
    "memory.stat": "anon 57344\nfile 106496\nkernel 1\nfile_mapped 12288\ninactive_file 100000\n"
    "active_file 6496\npgfault 1101\npgmajfault 3\n",
    "memory.swap.current": "20480\n",
    "memory.max": "67108864\n",
    "memory.swap.max": "max\n",
    "memory.min": "1048576\n",
    "memory.peak": "999424\n",
    "memory.events": "low 0\nhigh 0\nmax 7\noom 2\noom_kill 2\n",
    "pids.current": "2\n",
    "pids.max": "100\n",
    "io.stat": "254:0 rbytes=8192 wbytes=4096 rios=2 wios=1 dbytes=0 dios=0\n",
}

NET_DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     500       5    0    0    0     0          0         0      500       5    0    0    0     0       0          0
  eth0:    2026      23    1    2    0     0          0         0      612       8    3    4    0     0       0          0
"""  # noqa: E501 - the kernel's own layout


def write_cgroup(root: Path, cgroup: str, version: int, pid: int = 0, memory: int = 479232) -> None:
    """A cgroup below `root` (version 1: below `root/CONTROLLER`) with plausible files."""
    values = {"pid": pid, "cpu": 2392026661 + pid, "cpu_us": 2392026 + pid, "memory": memory}
    trees = {"": V2_FILES} if version == 2 else V1_FILES
    for controller, files in trees.items():
        directory = root / controller / cgroup.lstrip("/")
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            text = content.format(**values) if not pid or name != "cgroup.procs" else f"{pid}\n"
            (directory / name).write_text("" if not pid and name == "cgroup.procs" else text)


def hierarchies(root: Path, version: int) -> dict[str, str]:
    """Where the tree's parts are, as `find_hierarchies` tells it."""
    return {"": str(root)} if version == 2 else {name: str(root / name) for name in V1_FILES}


def write_process(proc: Path, pid: int) -> None:
    """A process with two open files and a socket."""
    directory = proc / str(pid)
    (directory / "net").mkdir(parents=True, exist_ok=True)
    (directory / "net" / "dev").write_text(NET_DEV)
    (directory / "limits").write_text(
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max open files            20000                20000                files     \n"
    )
    (directory / "fd").mkdir(exist_ok=True)
    for number, target in enumerate(("/dev/null", "pipe:[7]", "socket:[8]")):
        link = directory / "fd" / str(number)
        if not link.is_symlink():
            link.symlink_to(target)


def write_machine(proc: Path) -> None:
    """The files of a `/proc` that speak of the machine."""
    write_process(proc, 1)
    (proc / "sys" / "kernel").mkdir(parents=True, exist_ok=True)
    (proc / "sys" / "kernel" / "pid_max").write_text("32768\n")
    (proc / "sys" / "kernel" / "threads-max").write_text("191000\n")
    (proc / "loadavg").write_text("0.10 0.20 0.30 2/166 4711\n")
    (proc / "stat").write_text("cpu  1 2 3\nctxt 5\nbtime 1795258200\nprocesses 9\n")
    (proc / "partitions").write_text("major minor  #blocks  name\n\n 254        0  268435456 vda\n")
    (proc / "self").mkdir(exist_ok=True)
    (proc / "self" / "cgroup").write_text("0::/agent\n")
