//! Real programs, as command lines of a shell. Each works in a directory of its own.

/// Runs a command line by `sh -c` both ways.
fn shell(script: &str) {
    let script =
        format!("set -u; work=$(mktemp -d); cd $work; trap 'cd /; rm -rf $work' EXIT\n{script}");
    guest::compare("/bin/sh", &["-c", &script]);
}

macro_rules! scripts {
    ($($name:ident: $script:literal,)*) => {
        $(
            #[test]
            fn $name() {
                shell($script);
            }
        )*
    };
}

scripts! {
    pipelines: "seq 1 20000 | grep 7 | sed s/7/x/g | sort -r | uniq | awk '{ n += length($0) } END { print n, NR }' | tr ' ' _",
    many_small_programs: "i=0; while [ $i -lt 100 ]; do /bin/true && i=$((i + 1)); done; echo $i",
    coreutils: "ls -R /usr/share/doc | wc -l; du -s --apparent-size /usr/share/doc | cut -f1 | wc -w; cp -r /usr/share/doc/b* .; ls | sort | head -5; find . -type f | wc -l; rm -r b*; ls | wc -l",
    checksums: "find /usr/share/doc -type f | sort | xargs sha256sum | sha256sum",
    here_documents: "x=value; cat <<END; cat <<'END'\n$x $((6 * 7))\nEND\n$x\nEND",
    background_jobs: "for i in 3 2 1; do (sleep 0.0$i; echo $i > $i; exit $i) & pids=\"${pids:-} $!\"; done; for p in $pids; do wait $p; echo $?; done; cat 1 2 3",
    traps: "trap 'echo usr1' USR1; trap 'echo int' INT; kill -USR1 $$; kill -INT $$; (trap 'echo exiting' EXIT; exit 3); echo $?; sh -c 'kill -TERM $$'; echo $?",
    limits: "ulimit -n 64; ulimit -n; ulimit -S -s 1024; ulimit -s; (ulimit -f 1; trap '' XFSZ; head -c 4096 /dev/zero > big 2>/dev/null; echo $?; wc -c < big)",
    redirections: "exec 3>out; echo three >&3; exec 3>&-; cat out; echo two >&2 2>/dev/null; { echo a; echo b >&2; } 2>&1 | sort; cat < /dev/null; read x <<END\nline\nEND\necho $x; set -C; echo x > out 2>/dev/null; echo $?",
    fifos: "mkfifo f; (echo through > f) & cat f; wait; ls -l f | cut -c1",
    links: "echo x > a; ln a b; ln -s a c; stat -c '%h %F' a b c; readlink c; rm a; cat b; cat c 2>/dev/null; echo $?; mkdir -p d/e/f; mv d/e d/g; ls -R d; chmod 640 b; stat -c %a b; touch -d 2001-02-03 b; stat -c %y b",
    busybox: "busybox sh -c 'for i in a b c; do echo $i; done | busybox sort -r; busybox seq 5 | busybox tac; busybox uname -s; busybox echo $((1 << 10))'",
    perl: "perl -e 'my %h; $h{$_ % 7} += $_ for 1 .. 10000; print \"$_ $h{$_}\\n\" for sort keys %h; print `echo from child`; my $p = fork; if (!$p) { exit 3 } waitpid $p, 0; print $? >> 8, \"\\n\"; local $SIG{ALRM} = sub { print \"alarm\\n\"; exit 0 }; alarm 1; sleep 5'",
    git: "export HOME=$PWD GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z'; git config --global user.email a@b; git config --global user.name n; git init -q -b main r; cd r; for i in 1 2 3; do seq $i 1000 > f$i; git add .; git commit -q -m c$i; done; git log --oneline; cd ..; git clone -q r s; cd s; git log --format=%H; git gc -q; git fsck 2>/dev/null; git diff HEAD~2 --stat; git status --short; git branch x; git checkout -q x; git branch",
    make: "for i in 1 2 3 4 5 6; do echo \"int f$i(int x) { return x * $i; }\" > f$i.c; echo \"int f$i(int);\" >> all.h; done; printf '#include <stdio.h>\\n#include \"all.h\"\\nint main(void) { printf(\"%%d\\\\n\", f1(f2(f3(f4(f5(f6(1))))))); return 7; }\\n' > main.c; printf 'OBJ = main.o f1.o f2.o f3.o f4.o f5.o f6.o\\nprog: $(OBJ)\\n\\tgcc -o $@ $(OBJ)\\n%%.o: %%.c all.h\\n\\tgcc -O2 -c -o $@ $<\\n' > Makefile; make -s -j2; ./prog; echo $?; make -s -q; echo $?",
    tar: "tar cf - -C /usr/share/doc --sort=name . | sha256sum; tar cf a.tar -C /usr/share/doc .; mkdir x; tar xf a.tar -C x; diff -r x /usr/share/doc && echo same; tar tf a.tar | wc -l",
    compression: "tar cf a -C /usr/share/doc --sort=name .; xz -T1 -0 -k a; zstd -q -T2 a; gzip -k a; xz -dc a.xz | cmp - a; zstd -dc a.zst | cmp - a; gzip -dc a.gz | cmp - a; echo $?",
    rsync: "mkdir d; rsync -a /usr/share/doc/ d/; diff -r d /usr/share/doc && echo same; touch -d 2001-01-01 d/new; rsync -ani --delete /usr/share/doc/ d/ | grep deleting",
}

/// Runs a Python program both ways, from a file, as multiprocessing's spawn wants it.
fn python(program: &str) {
    shell(&format!(
        "cat > p.py <<'PROGRAM_ENDS'\n{program}\nPROGRAM_ENDS\npython3 p.py"
    ));
}

macro_rules! python {
    ($($name:ident: $program:literal,)*) => {
        $(
            #[test]
            fn $name() {
                python($program);
            }
        )*
    };
}

python! {
    python_libraries: r#"
import json, hashlib, re, zlib, collections
data = {str(i): [i, i * i, {"x": None, "y": 1.5 * i}] for i in range(1000)}
text = json.dumps(data, sort_keys=True)
print(len(text), json.loads(text) == data, hashlib.sha256(text.encode()).hexdigest())
print(len(re.findall(r"\b\d*7\d*\b", text)), zlib.crc32(text.encode()))
print(collections.Counter(text).most_common(5))
"#,
    python_threads: r#"
import threading, queue, time
jobs, results = queue.Queue(), queue.Queue()
def work():
    while (n := jobs.get()) is not None:
        results.put(n * n)
threads = [threading.Thread(target=work) for _ in range(8)]
for t in threads: t.start()
for n in range(1000): jobs.put(n)
for t in threads: jobs.put(None)
for t in threads: t.join()
print(sum(results.get() for _ in range(1000)))
event = threading.Event()
threading.Timer(0.05, event.set).start()
print(event.wait(5), event.wait(0.01), threading.Event().wait(0.01))
"#,
    python_subprocess: r#"
import subprocess
print(subprocess.run(["echo", "hi"], capture_output=True).stdout)
print(subprocess.run("exit 3", shell=True).returncode)
print(subprocess.run(["cat"], input=b"x" * 300000, stdout=subprocess.PIPE).stdout.count(b"x"))
p = subprocess.Popen(["sleep", "100"]); p.terminate(); print(p.wait())
try: subprocess.run(["sleep", "5"], timeout=0.05)
except subprocess.TimeoutExpired: print("timeout")
try: subprocess.run(["/no/such"])
except FileNotFoundError as e: print(e)
a = subprocess.Popen(["seq", "1000"], stdout=subprocess.PIPE)
b = subprocess.Popen(["tail", "-1"], stdin=a.stdout, stdout=subprocess.PIPE)
a.stdout.close(); print(b.communicate())
"#,
    python_multiprocessing_fork: r#"
import multiprocessing as mp
def f(x): return x * x
def put(q, n):
    for i in range(n): q.put(i)
if __name__ == "__main__":
    mp.set_start_method("fork")
    with mp.Pool(4) as pool: print(sum(pool.map(f, range(1000))))
    q = mp.Queue(); ps = [mp.Process(target=put, args=(q, 50)) for _ in range(4)]
    for p in ps: p.start()
    print(sum(q.get() for _ in range(200)))
    for p in ps: p.join()
    print([p.exitcode for p in ps])
    v = mp.Value("i", 0)
    def inc():
        for _ in range(1000):
            with v.get_lock(): v.value += 1
    ps = [mp.Process(target=inc) for _ in range(4)]
    for p in ps: p.start()
    for p in ps: p.join()
    print(v.value)
"#,
    python_multiprocessing_spawn: r#"
import multiprocessing as mp
def put(q, n): q.put(("from child", n))
def echo(c):
    while (x := c.recv()) is not None: c.send(x * 2)
if __name__ == "__main__":
    mp.set_start_method("spawn")
    q = mp.Queue(); p = mp.Process(target=put, args=(q, 7)); p.start(); print(q.get()); p.join()
    a, b = mp.Pipe(); p = mp.Process(target=echo, args=(b,)); p.start()
    a.send(21); print(a.recv()); a.send(None); p.join(); print(p.exitcode)
"#,
    python_sqlite: r#"
import sqlite3, os
for mode in "delete", "wal":
    c = sqlite3.connect(mode + ".db")
    print(c.execute("pragma journal_mode=" + mode).fetchall())
    c.execute("create table t (a integer primary key, b text)")
    with c: c.executemany("insert into t values (?, ?)", ((i, str(i) * 10) for i in range(5000)))
    d = sqlite3.connect(mode + ".db")
    print(d.execute("select count(*), sum(length(b)) from t where a % 3 = 0").fetchall())
    with d: d.execute("delete from t where a > 2500")
    c.execute("vacuum"); print(c.execute("select max(a) from t").fetchall(), c.execute("pragma integrity_check").fetchall())
    c.close(); d.close()
"#,
    python_files: r#"
import mmap, tempfile, os, select, shutil, socket
with tempfile.TemporaryFile() as f:
    f.write(b"0123456789" * 1000); f.flush()
    m = mmap.mmap(f.fileno(), 0); m[10:15] = b"MAPPD"; print(m[5:20], m.find(b"MAPPD"), len(m)); m.flush(); f.seek(8); print(f.read(10)); m.close()
m = mmap.mmap(-1, 1 << 20); m.write(b"anon")
if os.fork() == 0: m[0:4] = b"kid!"; os._exit(0)
os.wait(); print(m[0:4])
with tempfile.TemporaryDirectory() as d:
    os.makedirs(d + "/a/b/c"); open(d + "/a/b/c/f", "w").write("x"); shutil.copytree(d + "/a", d + "/z")
    print(sorted(os.path.relpath(os.path.join(r, f), d) for r, _, fs in os.walk(d) for f in fs))
    print(os.path.getsize(d + "/z/b/c/f"), os.access(d, os.W_OK), os.stat(d).st_mode & 0o777)
r, w = os.pipe(); print(select.select([r], [w], [], 0) == ([], [w], [])); os.write(w, b"x"); print(select.select([r], [], [], 1) == ([r], [], []))
p = select.poll(); p.register(r, select.POLLIN); print(p.poll(0) == [(r, select.POLLIN)])
e = select.epoll(); e.register(r, select.EPOLLIN); print(e.poll(0) == [(r, select.EPOLLIN)])
a, b = socket.socketpair(); socket.send_fds(a, [b"fd"], [w]); msg, fds, _, _ = socket.recv_fds(b, 10, 1); os.write(fds[0], b"y"); print(msg, os.read(r, 10))
"#,
    python_asyncio: r#"
import asyncio, signal
async def main():
    server = await asyncio.start_unix_server(lambda r, w: serve(r, w), "sock")
    async def serve(r, w):
        while line := await r.readline(): w.write(line.upper()); await w.drain()
        w.close()
    async def client(n):
        r, w = await asyncio.open_unix_connection("sock")
        w.write(f"line {n}\n".encode()); got = await r.readline(); w.close(); return got
    print(sorted(await asyncio.gather(*(client(n) for n in range(20)))))
    server.close()
    p = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    print(await p.communicate(b"through"), p.returncode)
    try: await asyncio.wait_for(asyncio.sleep(5), 0.02)
    except asyncio.TimeoutError: print("timeout")
asyncio.run(main())
"#,
}

#[test]
fn python_venv() {
    shell(
        "python3 -m venv v && v/bin/python -c 'import sys; print(sys.prefix != sys.base_prefix)'; ls v/bin | grep -c python",
    );
}

/// A C project as its authors ship it: built by two jobs and tested by its own tests. Objects, library and program are the same bytes as natively.
#[test]
fn a_real_project_is_built() {
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/sources");
    let archive = std::fs::read_dir(&sources)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| {
            path.to_string_lossy().contains("/bzip2_")
                && path.to_string_lossy().contains(".orig.tar.")
        });
    let archive =
        archive.expect("bzip2's source is not in target/sources: cargo xtask ci guest fetches it");
    let archive = archive.canonicalize().expect("it is there");
    // No -g: it would write down the directory, which differs.
    shell(&format!(
        "tar xf {} && cd bzip2-* && make -j2 CFLAGS='-Wall -O2 -D_FILE_OFFSET_BITS=64' 2>&1 | grep -c gcc; sha256sum *.o libbz2.a bzip2 bzip2recover; make -s check > said; echo $?; tail -3 said; ./bzip2 -k9 *.c && ls *.bz2 | wc -l; make -q libbz2.a CFLAGS=; echo $?; make -s clean; ls *.o 2>/dev/null | wc -l",
        archive.display()
    ));
}
