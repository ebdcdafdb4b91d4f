//! What stands in `deploy/`: it parses, names only what exists, and says what the documents say.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use trieway::metrics::names::{self, Kind};

fn deploy(below: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(below)
}

fn read(below: &str) -> String {
    fs::read_to_string(deploy(below)).unwrap_or_else(|error| panic!("{below}: {error}"))
}

fn files(below: &str) -> Vec<String> {
    let entries = fs::read_dir(deploy(below)).expect("a folder");
    let mut names: Vec<_> =
        entries.map(|entry| format!("{below}/{}", entry.expect("entry").file_name().display())).collect();
    names.sort();
    names
}

/// The documents of a YAML text.
fn yaml(name: &str, text: &str) -> Vec<Value> {
    let documents = text.split("\n---\n").filter(|document| !document.trim().is_empty());
    documents.map(|d| serde_saphyr::from_str(d).unwrap_or_else(|error| panic!("{name}: {error}\n{d}"))).collect()
}

fn of_kind<'o>(objects: &'o [Value], kind: &str) -> &'o Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

/// What every installation on Kubernetes needs, whoever writes it down.
fn check_objects(objects: &[Value]) {
    for object in objects {
        assert!(object["apiVersion"].is_string() && object["metadata"]["name"].is_string(), "{object}");
    }
    let deployment = &of_kind(objects, "Deployment")["spec"];
    let pod = &deployment["template"]["spec"];
    let container = &pod["containers"][0];
    let labels = &deployment["selector"]["matchLabels"];
    let holds = |all: &Value| labels.as_object().expect("labels").iter().all(|(key, value)| all[key] == *value);
    assert_eq!(deployment["replicas"], 2);
    assert!(holds(&deployment["template"]["metadata"]["labels"]));
    assert_eq!(of_kind(objects, "Service")["spec"]["selector"], *labels);
    assert_eq!(of_kind(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"], *labels);
    assert_eq!(container["ports"][0]["containerPort"], 8001);
    for (probe, path) in
        [("startupProbe", "/health/live"), ("livenessProbe", "/health/live"), ("readinessProbe", "/health")]
    {
        assert_eq!(container[probe]["httpGet"]["path"], path, "{probe}");
        assert_eq!(container[probe]["httpGet"]["port"], container["ports"][0]["name"], "{probe}");
    }
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    let grace = pod["terminationGracePeriodSeconds"].as_u64().expect("seconds");
    let pre_stop = container["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().expect("seconds");
    let config = config(container);
    assert!(grace > pre_stop + config.times.drain.as_secs(), "{grace} s are less than the drain takes");
    let account = &of_kind(objects, "ServiceAccount")["metadata"]["name"];
    assert_eq!(pod["serviceAccountName"], *account);
    assert_eq!(of_kind(objects, "RoleBinding")["subjects"][0]["name"], *account);
    assert_eq!(of_kind(objects, "RoleBinding")["roleRef"]["name"], of_kind(objects, "Role")["metadata"]["name"]);
    for rule in of_kind(objects, "Role")["rules"].as_array().expect("rules") {
        assert_eq!((&rule["resources"], &rule["verbs"]), (&json!(["pods"]), &json!(["get", "list", "watch"])));
    }
}

/// What the router makes of the container's arguments and environment.
fn config(container: &Value) -> trieway::config::Config {
    let mut line = vec!["trieway".to_owned()];
    line.extend(serde_json::from_value::<Vec<String>>(container["args"].clone()).expect("flags"));
    for variable in container["env"].as_array().expect("variables") {
        let name =
            variable["name"].as_str().and_then(|name| name.strip_prefix("TRIEWAY_")).expect("one of the router's");
        let flag = name.to_lowercase().replace('_', "-");
        let known = trieway::config::command().get_arguments().any(|arg| arg.get_long() == Some(&flag));
        assert!(known, "TRIEWAY_{name} is no flag's variable");
        let value = variable["value"].as_str().unwrap_or("a-namespace");
        line.push(format!("--{flag}={value}"));
    }
    assert!(line.contains(&"--service-discovery=k8s".to_owned()));
    if !cfg!(feature = "kubernetes") {
        line.retain(|flag| !flag.starts_with("--service-discovery") && !flag.starts_with("--k8s"));
        line.push("--static-backends=http://a:1".to_owned());
    }
    trieway::config::from_args(&line).expect("flags that the router takes")
}

#[test]
fn the_manifests_are_complete() {
    let kustomization = &yaml("kustomization", &read("kubernetes/kustomization.yaml"))[0];
    let mut listed: Vec<_> = kustomization["resources"]
        .as_array()
        .expect("resources")
        .iter()
        .map(|name| format!("kubernetes/{}", name.as_str().expect("a name")))
        .collect();
    listed.sort();
    let mut there = files("kubernetes");
    there.retain(|name| !name.ends_with("kustomization.yaml"));
    assert_eq!(listed, there);
    check_objects(&there.iter().flat_map(|name| yaml(name, &read(name))).collect::<Vec<_>>());
}

/// The part of Helm's template language that the chart uses.
fn render(template: &str, values: &Value) -> String {
    let value = |path: &str| {
        let path = path.strip_prefix(".Values.").unwrap_or_else(|| panic!("not a value: {path}"));
        let found = path.split('.').fold(values, |at, key| &at[key]);
        assert!(!found.is_null(), "values.yaml has no {path}");
        found.clone()
    };
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let (mut out, mut skip) = (String::new(), false);
    for line in template.lines() {
        let trimmed = line.trim();
        match trimmed.strip_prefix("{{- ").and_then(|rest| rest.strip_suffix(" }}")) {
            Some("end") => skip = false,
            Some("else") => skip = !skip,
            Some(action) => match action.split_whitespace().collect::<Vec<_>>()[..] {
                ["if", path] => skip = [json!(false), json!("")].contains(&value(path)),
                _ if skip => {}
                // JSON is YAML, too.
                ["toYaml", path, "|", "nindent", indent] => {
                    let indent = indent.parse().expect("a number");
                    out.push_str(&format!("{}{}\n", " ".repeat(indent), value(path)));
                }
                _ => panic!("the chart uses more than this test knows: {trimmed}"),
            },
            None if skip => {}
            None => {
                let mut line = line.replace("{{ .Release.Name }}", "r");
                while let Some((before, rest)) = line.split_once("{{ ") {
                    let (action, after) = rest.split_once(" }}").expect("closed");
                    let text = match action.strip_suffix(" | quote") {
                        Some(path) => format!("{:?}", plain(&value(path))),
                        None => plain(&value(action)),
                    };
                    line = format!("{before}{text}{after}");
                }
                out.push_str(&line);
                out.push('\n');
            }
        }
    }
    out
}

#[test]
fn the_chart_renders_to_complete_manifests() {
    let values = &yaml("values", &read("helm/trieway/values.yaml"))[0];
    let chart = &yaml("chart", &read("helm/trieway/Chart.yaml"))[0];
    assert_eq!(chart["apiVersion"], "v2");
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    assert_eq!(values["image"]["tag"], env!("CARGO_PKG_VERSION"));
    let templates = files("helm/trieway/templates");
    let rendered = templates.iter().flat_map(|name| yaml(name, &render(&read(name), values)));
    check_objects(&rendered.collect::<Vec<_>>());
    let mut fixed = values.clone();
    fixed["staticBackends"] = "http://a:1,http://b:2".into();
    let name = "helm/trieway/templates/deployment.yaml";
    let deployment = &yaml(name, &render(&read(name), &fixed))[0];
    let environment = &deployment["spec"]["template"]["spec"]["containers"][0]["env"];
    assert_eq!(*environment, json!([{"name": "TRIEWAY_STATIC_BACKENDS", "value": "http://a:1,http://b:2"}]));
}

/// Names of metrics in a query: words with one of the prefixes.
fn metrics(query: &str) -> Vec<&str> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let named = |word: &&str| ["vllm:", "trieway_", "process_"].iter().any(|prefix| word.starts_with(prefix));
    query.split(|c| !word(c)).filter(named).collect()
}

#[test]
fn every_query_of_the_board_names_a_metric_that_exists_with_labels_that_it_has() {
    let board: Value = serde_json::from_str(&read("grafana/trieway.json")).expect("JSON");
    let mut queries = 0;
    for target in
        board["panels"].as_array().expect("panels").iter().flat_map(|panel| panel["targets"].as_array()).flatten()
    {
        let query = target["expr"].as_str().expect("a query");
        let found = metrics(query);
        assert!(!found.is_empty(), "no metric: {query}");
        for name in found {
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
            let exact = names::ALL.iter().find(|metric| metric.name == name && metric.kind != Kind::Histogram);
            let histogram = names::ALL.iter().find(|m| Some(m.name) == family && m.kind == Kind::Histogram);
            let metric = exact.or(histogram).unwrap_or_else(|| panic!("no metric {name}: {query}"));
            for label in grouped_by(query).chain(shown(target)).filter(|label| *label != "le") {
                assert!(metric.labels.contains(&label), "{name} has no label {label}: {query}");
            }
            queries += 1;
        }
    }
    assert!(queries >= 25, "{queries}");
}

fn grouped_by(query: &str) -> impl Iterator<Item = &str> {
    let lists = query.split("by (").skip(1).filter_map(|rest| rest.split_once(')'));
    lists.flat_map(|(list, _)| list.split(',').map(str::trim))
}

/// Labels in a target's legend.
fn shown(target: &Value) -> impl Iterator<Item = &str> {
    let legend = target["legendFormat"].as_str().unwrap_or_default();
    legend.split("{{").skip(1).filter_map(|rest| rest.split_once("}}")).map(|(label, _)| label.trim())
}

#[test]
fn the_unit_runs_the_binary_with_flags_that_exist_and_is_told_when_it_is_ready() {
    let unit = read("systemd/trieway.service");
    let line = |key: &str| unit.lines().find_map(|l| l.strip_prefix(key)).unwrap_or_else(|| panic!("no {key}"));
    let mut words: Vec<String> = line("ExecStart=").split_whitespace().map(str::to_owned).collect();
    words.push("--static-backends=http://a:1".to_owned());
    let config = trieway::config::from_args(&words).expect("flags that the router takes");
    assert!(config.state_file.is_some_and(|path| path.starts_with("/var/lib/trieway")));
    assert_eq!((line("Type="), line("StateDirectory=")), ("notify", "trieway"));
    assert_eq!(line("ExecReload="), "/bin/kill -USR2 $MAINPID");
    let stop: u64 = line("TimeoutStopSec=").parse().expect("seconds");
    assert!(stop > config.times.drain.as_secs());
    for hardened in ["NoNewPrivileges=yes", "ProtectSystem=strict", "MemoryDenyWriteExecute=yes", "DynamicUser=yes"] {
        assert!(unit.lines().any(|line| line == hardened), "{hardened}");
    }
}

#[test]
fn the_image_is_built_in_stages_and_runs_as_nobody_in_particular() {
    let text = read("Dockerfile");
    let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines.iter().filter(|line| line.starts_with("FROM ")).count(), 2);
    assert!(lines.contains(&"USER nonroot"));
    let toolchain = fs::read_to_string(deploy("../rust-toolchain.toml")).expect("toolchain");
    let version = lines[0].split([':', '-']).nth(1).expect("a version");
    assert!(toolchain.contains(version), "the image is built by another toolchain than the tests: {version}");
}
