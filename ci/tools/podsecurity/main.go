// Command podsecurity judges pods with the Pod Security admission code of Kubernetes itself.
// Standard input: a JSON list of {"name", "metadata", "spec"}. Standard output: a JSON list of verdicts, in that order.
// Exit status 0 when all pods could be judged, whatever the verdicts; 2 when the input or a flag is wrong.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	kjson "sigs.k8s.io/json"
)

type pod struct {
	Name     string            `json:"name"`
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     corev1.PodSpec    `json:"spec"`
}

type finding struct {
	Reason string `json:"reason"`
	Detail string `json:"detail"`
}

type verdict struct {
	Name      string    `json:"name"`
	Allowed   bool      `json:"allowed"`
	Forbidden []finding `json:"forbidden"`
}

func main() {
	level := flag.String("level", "restricted", "privileged, baseline or restricted")
	version := flag.String("version", "latest", "the policy's version: latest, or a Kubernetes minor such as v1.34")
	flag.Parse()
	if err := run(*level, *version, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "podsecurity:", err)
		os.Exit(2)
	}
}

func run(level, version string, in io.Reader, out io.Writer) error {
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: pods are read from standard input", flag.Arg(0))
	}
	parsedLevel, err := api.ParseLevel(level)
	if err != nil {
		return fmt.Errorf("-level %s: %w", level, err)
	}
	parsedVersion, err := api.ParseVersion(version)
	if err != nil {
		return fmt.Errorf("-version %s: %w", version, err)
	}
	pods, err := readPods(in)
	if err != nil {
		return err
	}
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return err
	}
	verdicts := make([]verdict, 0, len(pods))
	for i := range pods {
		results := evaluator.EvaluatePod(api.LevelVersion{Level: parsedLevel, Version: parsedVersion}, &pods[i].Metadata, &pods[i].Spec)
		verdicts = append(verdicts, judge(pods[i].Name, results))
	}
	return json.NewEncoder(out).Encode(verdicts)
}

// readPods refuses unknown fields: a misspelt securityContext must not pass as an absent one.
func readPods(in io.Reader) ([]pod, error) {
	data, err := io.ReadAll(in)
	if err != nil {
		return nil, err
	}
	var pods []pod
	unknown, err := kjson.UnmarshalStrict(data, &pods)
	if err != nil {
		return nil, fmt.Errorf("standard input is no list of pods: %w", err)
	}
	if len(unknown) > 0 {
		return nil, fmt.Errorf("standard input: %w", unknown[0])
	}
	if len(pods) == 0 {
		return nil, fmt.Errorf("standard input holds no pod: give a JSON list of {name, metadata, spec}")
	}
	return pods, nil
}

func judge(name string, results []policy.CheckResult) verdict {
	v := verdict{Name: name, Allowed: true, Forbidden: []finding{}}
	for _, result := range results {
		if !result.Allowed {
			v.Allowed = false
			v.Forbidden = append(v.Forbidden, finding{Reason: result.ForbiddenReason, Detail: result.ForbiddenDetail})
		}
	}
	return v
}
