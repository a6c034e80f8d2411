// SPDX-License-Identifier: Apache-2.0

package main_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The architecture is who knows whom. What measures knows paths and time; what submits knows the ledger's calendar and
// keys; the two meet in the store and nowhere else, so that nothing behind the store can stop a probe. One package each
// talks to the kernel's BPF, to network namespaces and to the ledger.

const modulePath = "github.com/xtwamp/xtwamp"

// layout holds every package but cmd/xtwamp, which wires all of them together and may import any, and those under
// scripts, with the packages of this module that its code (tests aside) may import.
var layout = map[string][]string{
	"bpf":                          nil,
	"netns":                        nil,
	"netns/netnstest":              {"netns"},
	"probe":                        {"bpf", "netns", "probe/store", "probe/target", "probe/twamp"},
	"probe/store":                  nil,
	"probe/target":                 nil,
	"probe/twamp":                  nil,
	"submit":                       {"probe/store"},
	"submit/clickhouse":            {"submit", "submit/endpoint", "probe/store"},
	"submit/doublezero":            {"submit", "submit/endpoint", "probe/store", "probe/target"},
	"submit/doublezero/ledgertest": nil, // so that no mistake is in both
	"submit/endpoint":              nil,
	"submit/file":                  {"submit", "submit/endpoint", "probe/store"},
}

// owners are the folders that alone may import, also in tests, the libraries whose import path matches.
var owners = []struct {
	module *regexp.Regexp
	folder string
}{
	{regexp.MustCompile(`^github\.com/cilium/ebpf(/|$)`), "bpf"},
	{regexp.MustCompile(`^github\.com/vishvananda/`), "netns"},
	{regexp.MustCompile(`(?i)solana|base58|edwards25519`), "submit/doublezero"},
}

// topLevel is what the root folder may hold beside dotfiles; bin and build are what make builds.
var topLevel = []string{
	"bpf", "cmd", "netns", "probe", "scripts", "submit",
	"go.mod", "go.sum", "Makefile", "README.md", "CHANGELOG.md", "LICENSE",
	"bin", "build",
}

// goPackage is what go list says about one package, with its import paths made relative to the module.
type goPackage struct {
	ImportPath                         string
	Doc                                string
	GoFiles                            []string
	Imports, TestImports, XTestImports []string
}

func within(folder, pkg string) bool {
	return pkg == folder || strings.HasPrefix(pkg, folder+"/")
}

// checkLayout finds packages that have no place in the layout and imports among ours that it does not provide for.
func checkLayout(pkgs []goPackage) (problems []string) {
	for _, p := range pkgs {
		if _, ok := layout[p.ImportPath]; !ok && p.ImportPath != "cmd/xtwamp" && !within("scripts", p.ImportPath) {
			problems = append(problems, fmt.Sprintf("%s is no package of the layout", p.ImportPath))
			continue
		}
		for _, to := range p.Imports {
			if ours(to) && !mayImport(p.ImportPath, to) {
				problems = append(problems, fmt.Sprintf("%s imports %s", p.ImportPath, to))
			}
		}
		for _, to := range slices.Concat(p.TestImports, p.XTestImports) {
			if ours(to) && !testMayImport(p.ImportPath, to) {
				problems = append(problems, fmt.Sprintf("a test of %s imports %s", p.ImportPath, to))
			}
		}
	}
	return problems
}

func ours(importPath string) bool {
	_, ok := layout[importPath]
	return ok || within("cmd", importPath) || within("scripts", importPath)
}

func mayImport(from, to string) bool {
	switch {
	case within("cmd", to) || within("scripts", to):
		return false
	case strings.HasSuffix(to, "test"): // for tests, and for the demo, which is a script
		return within("scripts", from)
	case from == "cmd/xtwamp":
		return true
	}
	return slices.Contains(layout[from], to)
}

// testMayImport is about the tests of package from, which may import what they need to drive it, but not across the
// store: a test that needs both halves belongs to cmd/xtwamp.
func testMayImport(from, to string) bool {
	switch {
	case to == from: // an external test
		return true
	case within("cmd", to) || within("scripts", to):
		return false
	case within("probe", from):
		return !within("submit", to)
	case within("submit", from):
		return to != "probe"
	}
	return true
}

// checkOwners finds imports of libraries that belong to one folder from outside of it.
func checkOwners(pkgs []goPackage) (problems []string) {
	for _, p := range pkgs {
		for _, to := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(p.Imports, p.TestImports, p.XTestImports)))) {
			for _, o := range owners {
				if o.module.MatchString(to) && !within(o.folder, p.ImportPath) {
					problems = append(problems, fmt.Sprintf("%s imports %s, which only %s may", p.ImportPath, to, o.folder))
				}
			}
		}
	}
	return problems
}

// checkComments finds packages without a package comment.
func checkComments(pkgs []goPackage) (problems []string) {
	for _, p := range pkgs {
		if len(p.GoFiles) > 0 && p.Doc == "" {
			problems = append(problems, fmt.Sprintf("%s has no package comment", p.ImportPath))
		}
	}
	return problems
}

// checkTopLevel finds entries that do not belong into the root folder.
func checkTopLevel(names []string) (problems []string) {
	for _, name := range names {
		if !strings.HasPrefix(name, ".") && !slices.Contains(topLevel, name) {
			problems = append(problems, fmt.Sprintf("%s does not belong into the root folder", name))
		}
	}
	return problems
}

// The words for how the ledger divides time and space, also inside of longer names.
var ledgerWords = regexp.MustCompile(`(?i)epoch|partition`)

// checkWords finds the ledger's words in code that measures. It takes files by their path, of which it looks at Go and C
// (generated ones too) that is not a test.
func checkWords(files map[string]string) (problems []string) {
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if !within("bpf", path) && !within("netns", path) && !within("probe", path) ||
			!slices.Contains([]string{".c", ".h", ".go"}, filepath.Ext(path)) || strings.HasSuffix(path, "_test.go") {
			continue
		}
		for i, line := range strings.Split(files[path], "\n") {
			if word := ledgerWords.FindString(line); word != "" {
				problems = append(problems, fmt.Sprintf("%s:%d: %s", path, i+1, word))
			}
		}
	}
	return problems
}

// Loggers and registerers are handed down from main. perProcess is the functions and variables of each library that
// work on one that the whole process shares; held is the names that make a package variable hold one (or a metric).
var perProcess = map[string]*regexp.Regexp{
	"log":               regexp.MustCompile(`^(Default|Fatal|Flags|Output|Panic|Prefix|Print|Set|Writer)`),
	"log/slog":          regexp.MustCompile(`^(Default|SetDefault|SetLogLoggerLevel|With|Log|LogAttrs|(Debug|Info|Warn|Error)(Context)?)$`),
	"go.uber.org/zap":   regexp.MustCompile(`^(L|S|ReplaceGlobals|RedirectStdLog.*)$`),
	prometheusLib:       regexp.MustCompile(`^(DefaultRegisterer|DefaultGatherer|Register|MustRegister|Unregister)$`),
	promLib("promauto"): regexp.MustCompile(`^New`),
	promLib("promhttp"): regexp.MustCompile(`^Handler$`),
}

var held = map[string]*regexp.Regexp{
	"log":             regexp.MustCompile(`^(Logger|New)$`),
	"log/slog":        regexp.MustCompile(`^(Logger|New)$`),
	"go.uber.org/zap": regexp.MustCompile(`^(Logger|SugaredLogger|Must|New(Nop|Production|Development|Example)?)$`),
	prometheusLib:     regexp.MustCompile(`^(Registerer|Gatherer|Registry|New(Pedantic)?Registry|New(Counter|Gauge|Histogram|Summary).*)$`),
}

const prometheusLib = "github.com/prometheus/client_golang/prometheus"

func promLib(name string) string { return prometheusLib + "/" + name }

// checkGlobals finds init functions, loggers and registerers that are package variables, and uses of those that are
// global in their library. It takes the Go files of one folder by their path, and leaves out the tests.
func checkGlobals(files map[string]string) (problems []string, err error) {
	fset := token.NewFileSet()
	parsed := make(map[string]*ast.File)
	makers := make(map[string]bool) // functions of the package that return a logger or registerer
	for path, src := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, path, src, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		parsed[path] = f
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Type.Results != nil {
				makers[fn.Name.Name] = mentions(fn.Type.Results, imported(f), held, nil)
			}
		}
	}

	report := func(n ast.Node, what string) {
		problems = append(problems, fmt.Sprintf("%s: %s", fset.Position(n.Pos()), what))
	}
	for _, path := range slices.Sorted(maps.Keys(parsed)) {
		f, libs := parsed[path], imported(parsed[path])
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				report(fn, "func init")
			}
			if v, ok := d.(*ast.GenDecl); ok && v.Tok == token.VAR {
				for _, spec := range v.Specs {
					if mentions(spec, libs, held, makers) {
						report(spec, "package variable "+spec.(*ast.ValueSpec).Names[0].Name)
					}
				}
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if name, ok := selected(n, libs, perProcess); ok {
				report(n, name)
			}
			return true
		})
	}
	return problems, nil
}

// imported returns the import paths of a file by the names that they have in it.
func imported(f *ast.File) map[string]string {
	libs := make(map[string]string)
	for _, spec := range f.Imports {
		importPath, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			panic(err) // the parser has accepted it
		}
		name := importPath[strings.LastIndex(importPath, "/")+1:]
		if spec.Name != nil {
			name = spec.Name.Name
		}
		libs[name] = importPath
	}
	return libs
}

// mentions reports whether a declaration refers to one of names or calls one of makers. What stands in a function inside
// of it, or among a function's parameters, is not held by it.
func mentions(decl ast.Node, libs map[string]string, names map[string]*regexp.Regexp, makers map[string]bool) (found bool) {
	ast.Inspect(decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit, *ast.FuncType:
			return false
		case *ast.CallExpr:
			if fn, ok := n.Fun.(*ast.Ident); ok && makers[fn.Name] {
				found = true
			}
		}
		if _, ok := selected(n, libs, names); ok {
			found = true
		}
		return !found
	})
	return found
}

// selected reports whether n is an expression like zap.L whose right side matches what names has for its library.
func selected(n ast.Node, libs map[string]string, names map[string]*regexp.Regexp) (string, bool) {
	sel, ok := n.(*ast.SelectorExpr)
	if !ok {
		return "", false
	}
	lib, ok := sel.X.(*ast.Ident)
	if !ok {
		return "", false
	}
	re := names[libs[lib.Name]]
	return lib.Name + "." + sel.Sel.Name, re != nil && re.MatchString(sel.Sel.Name)
}

// TestArchitecture applies the rules to this module.
func TestArchitecture(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	pkgs := listPackages(t, root)
	files := readSources(t, root)

	expectNone := func(rule string, problems []string) {
		t.Run(rule, func(t *testing.T) {
			for _, p := range problems {
				t.Error(p)
			}
		})
	}
	expectNone("our packages import only what the layout provides for", checkLayout(pkgs))
	expectNone("libraries are imported by their owners only", checkOwners(pkgs))
	expectNone("packages have comments", checkComments(pkgs))
	expectNone("measuring does not use the ledger's words", checkWords(files))

	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	expectNone("the root folder holds only what belongs there", checkTopLevel(names))

	folders := make(map[string]map[string]string)
	for path, src := range files {
		if filepath.Ext(path) == ".go" {
			dir := filepath.Dir(path)
			if folders[dir] == nil {
				folders[dir] = make(map[string]string)
			}
			folders[dir][path] = src
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(folders)) {
		problems, err := checkGlobals(folders[dir])
		if err != nil {
			t.Fatal(err)
		}
		expectNone("no globals and no init in "+dir, problems)
	}
}

// listPackages returns the packages of the module, with their import paths relative to it.
func listPackages(t *testing.T, root string) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Doc,GoFiles,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = root
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}

	var pkgs []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		relative(&p.ImportPath)
		for _, list := range [][]string{p.Imports, p.TestImports, p.XTestImports} {
			for i := range list {
				relative(&list[i])
			}
		}
		pkgs = append(pkgs, p)
	}
	if len(pkgs) == 0 {
		t.Fatal("go list found no package")
	}
	return pkgs
}

// relative cuts the module's path off an import path of this module. A package that lay in the module's root would keep
// it, and so be none of the layout.
func relative(importPath *string) {
	*importPath = strings.TrimPrefix(*importPath, modulePath+"/")
}

// readSources returns the C and Go files of the module by their path relative to root.
func readSources(t *testing.T, root string) map[string]string {
	t.Helper()
	files := make(map[string]string)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")) {
			return filepath.SkipDir
		}
		if !slices.Contains([]string{".c", ".h", ".go"}, filepath.Ext(path)) {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		files[rel] = string(src)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestArchitectureRules shows for each rule what breaks it and what does not.
func TestArchitectureRules(t *testing.T) {
	code := func(from string, to ...string) goPackage { return goPackage{ImportPath: from, Imports: to} }
	test := func(from string, to ...string) goPackage { return goPackage{ImportPath: from, TestImports: to} }
	xtest := func(from string, to ...string) goPackage { return goPackage{ImportPath: from, XTestImports: to} }

	for _, tt := range []struct {
		name  string
		check func([]goPackage) []string
		pkg   goPackage
		want  []string
	}{
		{"cmd wires everything", checkLayout, code("cmd/xtwamp", "bpf", "netns", "probe", "probe/store", "submit", "submit/doublezero"), nil},
		{"cmd and test support", checkLayout, code("cmd/xtwamp", "netns/netnstest"), []string{"cmd/xtwamp imports netns/netnstest"}},
		{"test of cmd and test support", checkLayout, xtest("cmd/xtwamp", "cmd/xtwamp", "netns/netnstest"), nil},
		{"nobody imports cmd", checkLayout, code("probe", "cmd/xtwamp"), []string{"probe imports cmd/xtwamp"}},
		{"no test imports cmd", checkLayout, test("probe", "cmd/xtwamp"), []string{"a test of probe imports cmd/xtwamp"}},
		{"no second command", checkLayout, code("cmd/other"), []string{"cmd/other is no package of the layout"}},
		{"nothing outside of the layout", checkLayout, code("probe/util"), []string{"probe/util is no package of the layout"}},
		{"nothing in the root folder", checkLayout, code(modulePath), []string{modulePath + " is no package of the layout"}},
		{"probe's parts", checkLayout, code("probe", "bpf", "netns", "probe/store", "probe/target", "probe/twamp", "fmt"), nil},
		{"probe and submit", checkLayout, code("probe", "submit"), []string{"probe imports submit"}},
		{"probe and a sink", checkLayout, code("probe", "submit/file"), []string{"probe imports submit/file"}},
		{"a test of probe and a sink", checkLayout, xtest("probe/store", "submit/file"), []string{"a test of probe/store imports submit/file"}},
		{"submit and probe", checkLayout, code("submit", "probe"), []string{"submit imports probe"}},
		{"a test of a sink and probe", checkLayout, test("submit/file", "probe"), []string{"a test of submit/file imports probe"}},
		{"a test of a sink and the store", checkLayout, test("submit/file", "submit", "probe/store"), nil},
		{"submit meets probe in the store", checkLayout, code("submit", "probe/store"), nil},
		{"submit and a sink", checkLayout, code("submit", "submit/file"), []string{"submit imports submit/file"}},
		{"a sink and targets", checkLayout, code("submit/file", "submit", "submit/endpoint", "probe/store", "probe/target"), []string{"submit/file imports probe/target"}},
		{"a sink that discovers", checkLayout, code("submit/doublezero", "submit", "submit/endpoint", "probe/store", "probe/target"), nil},
		{"a sink and another", checkLayout, code("submit/doublezero", "submit/file"), []string{"submit/doublezero imports submit/file"}},
		{"endpoint knows none of us", checkLayout, code("submit/endpoint", "submit"), []string{"submit/endpoint imports submit"}},
		{"bpf knows none of us", checkLayout, code("bpf", "netns"), []string{"bpf imports netns"}},
		{"netns knows none of us", checkLayout, code("netns", "bpf"), []string{"netns imports bpf"}},
		{"store knows none of us", checkLayout, code("probe/store", "probe/target"), []string{"probe/store imports probe/target"}},
		{"target knows none of us", checkLayout, code("probe/target", "probe/twamp"), []string{"probe/target imports probe/twamp"}},
		{"twamp knows none of us", checkLayout, code("probe/twamp", "probe"), []string{"probe/twamp imports probe"}},
		{"code and test support", checkLayout, code("probe", "netns/netnstest"), []string{"probe imports netns/netnstest"}},
		{"tests and test support", checkLayout, test("bpf", "netns/netnstest", "netns"), nil},
		{"a script may use test support", checkLayout, code("scripts/demo", "submit/doublezero/ledgertest"), nil},
		{"a script and the rest", checkLayout, code("scripts/demo", "probe"), []string{"scripts/demo imports probe"}},
		{"nobody imports scripts", checkLayout, code("cmd/xtwamp", "scripts/demo"), []string{"cmd/xtwamp imports scripts/demo"}},

		{"ebpf in bpf", checkOwners, code("bpf", "github.com/cilium/ebpf", "github.com/cilium/ebpf/link"), nil},
		{"ebpf elsewhere", checkOwners, code("probe", "github.com/cilium/ebpf/link"), []string{"probe imports github.com/cilium/ebpf/link, which only bpf may"}},
		{"ebpf in a test elsewhere", checkOwners, test("probe", "github.com/cilium/ebpf"), []string{"probe imports github.com/cilium/ebpf, which only bpf may"}},
		{"netlink in netns", checkOwners, code("netns", "github.com/vishvananda/netlink"), nil},
		{"netlink in netnstest", checkOwners, code("netns/netnstest", "github.com/vishvananda/netns"), nil},
		{"netlink elsewhere", checkOwners, xtest("bpf", "github.com/vishvananda/netlink"), []string{"bpf imports github.com/vishvananda/netlink, which only netns may"}},
		{"solana in its sink", checkOwners, code("submit/doublezero/ledgertest", "github.com/gagliardetto/solana-go/rpc"), nil},
		{"solana elsewhere", checkOwners, code("submit", "github.com/gagliardetto/solana-go"), []string{"submit imports github.com/gagliardetto/solana-go, which only submit/doublezero may"}},

		{"a comment", checkComments, goPackage{ImportPath: "bpf", GoFiles: []string{"a.go"}, Doc: "Package bpf is."}, nil},
		{"no comment", checkComments, goPackage{ImportPath: "bpf", GoFiles: []string{"a.go"}}, []string{"bpf has no package comment"}},
		{"a folder of tests needs no comment", checkComments, goPackage{ImportPath: "bpf"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, tt.check([]goPackage{tt.pkg})); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}

	t.Run("words", func(t *testing.T) {
		got := checkWords(map[string]string{
			"bpf/abi.h":               "int a;\nint Epoch_now;",
			"bpf/xtwamp.bpf.c":        "/* partitions */",
			"bpf/xtwamp_bpfel.go":     "var currentEpoch int",
			"bpf/README.md":           "epoch",
			"netns/netns.go":          "// an EPOCH",
			"probe/store/log.go":      "repartition",
			"probe/store/log_test.go": "epoch",
			"probes/x.go":             "epoch",
			"submit/submit.go":        "epoch",
		})
		want := []string{
			"bpf/abi.h:2: Epoch",
			"bpf/xtwamp.bpf.c:1: partition",
			"bpf/xtwamp_bpfel.go:1: Epoch",
			"netns/netns.go:1: EPOCH",
			"probe/store/log.go:1: partition",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("problems (-want +got):\n%s", diff)
		}
	})

	t.Run("root folder", func(t *testing.T) {
		got := checkTopLevel([]string{".ci", "Makefile", "bpf", "docs", "main.go"})
		want := []string{"docs does not belong into the root folder", "main.go does not belong into the root folder"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("problems (-want +got):\n%s", diff)
		}
	})

	for _, tt := range []struct {
		name, file, src string
		want            []string
	}{
		{"init", "a.go", "package a\nfunc init() {}", []string{"a.go:2:1: func init"}},
		{"init in a test", "a_test.go", "package a\nfunc init() {}", nil},
		{"a method of that name", "a.go", "package a\ntype t int\nfunc (t) init() {}", nil},
		{"declared logger", "a.go", "package a\nimport \"go.uber.org/zap\"\nvar log *zap.Logger", []string{"a.go:3:5: package variable log"}},
		{"logger in a struct", "a.go", "package a\nimport \"go.uber.org/zap\"\nvar env = struct{ log *zap.Logger }{}", []string{"a.go:3:5: package variable env"}},
		{"made logger", "a.go", "package a\nimport z \"go.uber.org/zap\"\nvar log = z.NewNop()", []string{"a.go:3:5: package variable log"}},
		{"logger from a function", "a.go", "package a\nimport \"go.uber.org/zap\"\nvar log = logger()\nfunc logger() *zap.Logger { return nil }", []string{"a.go:3:5: package variable log"}},
		{"logger in a test", "a_test.go", "package a\nimport \"go.uber.org/zap\"\nvar log = zap.NewNop()", nil},
		{"function that takes a logger", "a.go", "package a\nimport \"go.uber.org/zap\"\nvar f = func(l *zap.Logger) *zap.Logger { return l }\nvar g func(*zap.Logger)", nil},
		{"logger that is handed down", "a.go", "package a\nimport \"go.uber.org/zap\"\ntype Config struct { Logger *zap.Logger }\nfunc f() { l := zap.NewNop(); l.Info(\"\") }", nil},
		{"zap's own logger", "a.go", "package a\nimport \"go.uber.org/zap\"\nfunc f() { zap.L().Info(\"\") }", []string{"a.go:3:12: zap.L"}},
		{"standard logger", "a.go", "package a\nimport \"log\"\nfunc f() { log.Printf(\"\") }", []string{"a.go:3:12: log.Printf"}},
		{"variable named log", "a.go", "package a\nfunc f(log interface{ Printf() }) { log.Printf() }", nil},
		{"default slog", "a.go", "package a\nimport \"log/slog\"\nfunc f() { slog.Info(\"\"); _ = slog.LevelInfo }", []string{"a.go:3:12: slog.Info"}},
		{"registry", "a.go", "package a\nimport \"" + prometheusLib + "\"\nvar r = prometheus.NewRegistry()", []string{"a.go:3:5: package variable r"}},
		{"metric", "a.go", "package a\nimport \"" + prometheusLib + "\"\nvar c = prometheus.NewCounterVec(prometheus.CounterOpts{}, nil)", []string{"a.go:3:5: package variable c"}},
		{"description", "a.go", "package a\nimport \"" + prometheusLib + "\"\nvar d = prometheus.NewDesc(\"\", \"\", nil, nil)", nil},
		{"default registerer", "a.go", "package a\nimport \"" + prometheusLib + "\"\nfunc f() { prometheus.MustRegister(nil) }", []string{"a.go:3:12: prometheus.MustRegister"}},
		{"promauto without a registerer", "a.go", "package a\nimport \"" + promLib("promauto") + "\"\nfunc f() { promauto.NewCounter(x); promauto.With(r).NewCounter(x) }", []string{"a.go:3:12: promauto.NewCounter"}},
		{"default gatherer", "a.go", "package a\nimport \"" + promLib("promhttp") + "\"\nfunc f() { promhttp.Handler(); promhttp.HandlerFor(g, o) }", []string{"a.go:3:12: promhttp.Handler"}},
	} {
		t.Run("globals: "+tt.name, func(t *testing.T) {
			got, err := checkGlobals(map[string]string{tt.file: tt.src})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}
