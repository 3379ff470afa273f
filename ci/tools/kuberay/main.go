// Command kuberay judges RayClusters and RayServices with the KubeRay operator's own code, without an operator or a cluster:
// what its reconcile would refuse, the pods it would make, and the spec as it writes it back when it adds a finalizer.
// Standard input: a JSON list of objects. Standard output: a JSON list of {"error", "pods", "written"}, in that order.
// Exit status 0 when all objects could be read, whatever the verdicts; 2 when the input is wrong.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	rayv1 "github.com/ray-project/kuberay/ray-operator/apis/ray/v1"
	"github.com/ray-project/kuberay/ray-operator/controllers/ray/common"
	"github.com/ray-project/kuberay/ray-operator/controllers/ray/utils"
)

type verdict struct {
	Error   string       `json:"error"`
	Pods    []corev1.Pod `json:"pods"`
	Written any          `json:"written"`
}

func main() {
	ctrl.SetLogger(logr.Discard())
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "kuberay:", err)
		os.Exit(2)
	}
}

func run(in io.Reader, out io.Writer) error {
	var objects []json.RawMessage
	if err := json.NewDecoder(in).Decode(&objects); err != nil {
		return fmt.Errorf("standard input is no JSON list: %w", err)
	}
	verdicts := make([]verdict, 0, len(objects))
	for i, object := range objects {
		v, err := judge(object)
		if err != nil {
			return fmt.Errorf("object %d: %w", i, err)
		}
		verdicts = append(verdicts, v)
	}
	return json.NewEncoder(out).Encode(verdicts)
}

func judge(object json.RawMessage) (verdict, error) {
	var meta metav1.TypeMeta
	if err := json.Unmarshal(object, &meta); err != nil {
		return verdict{}, err
	}
	var cluster rayv1.RayCluster
	var refusal error
	var written any
	switch meta.Kind {
	case "RayCluster":
		if err := json.Unmarshal(object, &cluster); err != nil {
			return verdict{}, err
		}
		written = *cluster.Spec.DeepCopy()
		refusal = first(utils.ValidateRayClusterMetadata(cluster.ObjectMeta), utils.ValidateRayClusterUpgradeOptions(&cluster))
	case "RayService":
		var service rayv1.RayService
		if err := json.Unmarshal(object, &service); err != nil {
			return verdict{}, err
		}
		written = *service.Spec.DeepCopy()
		refusal = first(utils.ValidateRayServiceMetadata(service.ObjectMeta), utils.ValidateRayServiceSpec(&service))
		cluster = clusterOf(service)
	default:
		return verdict{}, fmt.Errorf("kind %q is neither RayCluster nor RayService", meta.Kind)
	}
	applyDefaults(&cluster.Spec)
	refusal = first(refusal, utils.ValidateRayClusterSpec(&cluster.Spec, cluster.Annotations))
	if refusal != nil {
		return verdict{Error: refusal.Error(), Pods: []corev1.Pod{}, Written: written}, nil
	}
	return verdict{Pods: pods(cluster), Written: written}, nil
}

// clusterOf is the cluster that the operator generates, with the names it gives.
func clusterOf(service rayv1.RayService) rayv1.RayCluster {
	labels := map[string]string{
		utils.RayOriginatedFromCRNameLabelKey: service.Name,
		utils.RayOriginatedFromCRDLabelKey:    utils.RayOriginatedFromCRDLabelValue(utils.RayServiceCRD),
	}
	for key, value := range service.Labels {
		labels[key] = value
	}
	return rayv1.RayCluster{
		ObjectMeta: metav1.ObjectMeta{
			Name: utils.GenerateRayClusterName(service.Name), Namespace: service.Namespace,
			Labels: labels, Annotations: service.Annotations,
		},
		Spec: service.Spec.RayClusterSpec,
	}
}

// applyDefaults does what the API server does with the CRD's defaults.
func applyDefaults(spec *rayv1.RayClusterSpec) {
	for i := range spec.WorkerGroupSpecs {
		group := &spec.WorkerGroupSpecs[i]
		if group.NumOfHosts == 0 {
			group.NumOfHosts = 1
		}
		if group.Replicas == nil {
			group.Replicas = new(int32)
		}
	}
}

func pods(cluster rayv1.RayCluster) []corev1.Pod {
	ctx := context.Background()
	spec := cluster.Spec
	headPort := common.GetHeadPort(spec.HeadGroupSpec.RayStartParams)
	autoscaling := utils.IsAutoscalingEnabled(&spec)
	creator := utils.GetCRDType(cluster.Labels[utils.RayOriginatedFromCRDLabelKey])
	address := utils.GenerateFQDNServiceName(ctx, cluster, cluster.Namespace)

	template := common.DefaultHeadPodTemplate(ctx, cluster, spec.HeadGroupSpec, cluster.Name+"-head", headPort)
	made := []corev1.Pod{common.BuildPod(ctx, template, rayv1.HeadNode, spec.HeadGroupSpec.RayStartParams, headPort,
		autoscaling, creator, address, nil, spec.RayVersion)}
	for _, group := range spec.WorkerGroupSpecs {
		total := int(utils.GetWorkerGroupDesiredReplicas(group))
		for i := 0; i < total; i++ {
			name := fmt.Sprintf("%s-%s-worker-%d", cluster.Name, group.GroupName, i)
			replica := i / int(group.NumOfHosts)
			worker := common.DefaultWorkerPodTemplate(ctx, cluster, *group.DeepCopy(), name, address, headPort,
				fmt.Sprintf("%s-%d", group.GroupName, replica), replica, i%int(group.NumOfHosts))
			made = append(made, common.BuildPod(ctx, worker, rayv1.WorkerNode, group.DeepCopy().RayStartParams, headPort,
				autoscaling, creator, address, nil, spec.RayVersion))
		}
	}
	return made
}

func first(errors ...error) error {
	for _, err := range errors {
		if err != nil {
			return err
		}
	}
	return nil
}
